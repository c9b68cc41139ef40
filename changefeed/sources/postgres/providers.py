"""Who runs the server, and what an administrator types there: services lack ``ALTER SYSTEM``, and
some give the right to replicate in another way. Rows by the services' documentation."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.sources.postgres.connect import PsycopgConnection


@dataclass(frozen=True, slots=True)
class Provider:
    """How a service is recognised, by what every role may see, and set up.

    Attributes:
        name: the service's.
        marker: a condition in SQL on the catalog that only this service satisfies.
        logical: what turns logical replication on.
        settings: how a setting of the server is changed, with ``{name}`` and ``{value}``.
        grant: gives ``{role}`` the right to replicate.
    """

    name: str
    marker: str
    logical: str
    settings: str
    grant: str = "ALTER ROLE {role} REPLICATION;"

    def setting(self, name: str, value: str) -> str:
        """How to change a setting of the server; ``value`` as SQL has it."""
        return self.settings.format(name=name, value=value)

    def replication(self, role: str) -> str:
        """How a role, quoted where needed, gets the right to replicate."""
        return self.grant.format(role=role)


def _role(name: str) -> str:
    return f"EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{name}')"


ITSELF = Provider(
    "PostgreSQL",
    "true",
    "ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server",
    "ALTER SYSTEM SET {name} = {value};",
)

#: The first whose marker is there. Aurora has the roles of RDS, too.
PROVIDERS = (
    Provider(
        "Amazon Aurora",
        "EXISTS (SELECT FROM pg_catalog.pg_proc WHERE proname = 'aurora_version')",
        "set rds.logical_replication = 1 in the DB cluster parameter group, then reboot the writer",
        "Set {name} = {value} in the DB cluster parameter group;",
        "GRANT rds_replication TO {role};",
    ),
    Provider(
        "Amazon RDS",
        _role("rds_replication"),
        "set rds.logical_replication = 1 in the DB parameter group, then reboot the instance",
        "Set {name} = {value} in the DB parameter group;",
        "GRANT rds_replication TO {role};",
    ),
    Provider(
        "Google Cloud SQL",
        _role("cloudsqlsuperuser"),
        "set the flag cloudsql.logical_decoding = on, then restart the instance",
        "Set the flag {name} = {value};",
        "ALTER USER {role} WITH REPLICATION;",
    ),
    Provider(
        "Google AlloyDB",
        _role("alloydbsuperuser"),
        "set the flag alloydb.logical_decoding = on, then restart the instance",
        "Set the flag {name} = {value};",
        "ALTER USER {role} WITH REPLICATION;",
    ),
    Provider(
        "Azure Database for PostgreSQL",
        _role("azure_pg_admin"),
        "set the server parameter wal_level = logical, then restart the server",
        "Set the server parameter {name} = {value};",
    ),
    Provider(
        "Supabase",
        _role("supabase_admin"),
        "Supabase sets wal_level = logical in every project: ask its support why this one differs",
        "Set {name} = {value} with the Supabase CLI (postgres-config update);",
    ),
    Provider(
        "Neon",
        _role("neon_superuser"),
        "enable logical replication in the settings of the Neon project; it cannot be undone",
        "Ask Neon's support to set {name} = {value};",
    ),
    Provider(
        "Heroku Postgres",
        "EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'heroku_ext')",
        "Heroku sets wal_level, and its customers cannot: ask its support whether the plan has "
        "logical replication",
        "Ask Heroku's support to set {name} = {value};",
        "Ask Heroku's support for a credential that may replicate; ALTER ROLE {role} REPLICATION "
        "needs a superuser there",
    ),
)


def of(connection: PsycopgConnection) -> Provider:
    """Who runs the server that the connection leads to."""
    query = "SELECT " + ", ".join(provider.marker for provider in PROVIDERS)
    found = connection.execute(query).fetchone() or ()
    return next((p for p, there in zip(PROVIDERS, found, strict=True) if there), ITSELF)
