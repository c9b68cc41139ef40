// A Spanner for tests: spannertest, the in-memory fake of Google's Go client, behind what our
// sink needs and the fake lacks.
//
// The fake has one database, no rollback and no isolation. In front of it are here: a fake for each
// database; transactions that are aborted when another one committed since they began; the limit of
// mutations; the views of INFORMATION_SCHEMA that tell columns, keys and the dialect; IF (NOT) EXISTS;
// unary reads; partitioned DML. NUMERIC and JSON columns are kept as texts, and their values are
// not looked at. A commit that the fake refuses may leave a part of itself, and one of more than
// 4 MB is refused.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"regexp"
	"strings"
	"sync"

	lropb "cloud.google.com/go/longrunning/autogen/longrunningpb"
	adminpb "cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	spannerpb "cloud.google.com/go/spanner/apiv1/spannerpb"
	"cloud.google.com/go/spanner/spannertest"
	"cloud.google.com/go/spanner/spansql"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

const mostMutations = 80_000

type column struct{ name, kind string }

type table struct {
	columns []column
	key     []string
}

type transaction struct {
	began int // commits there were
	reads bool
}

// database is one fake, and what is known of it here.
type database struct {
	mu           sync.RWMutex // whole commits are seen
	fake         *spannertest.Server
	client       spannerpb.SpannerClient
	conn         *grpc.ClientConn
	tables       map[string]*table
	commits      int
	transactions map[string]*transaction
}

type server struct {
	spannerpb.UnimplementedSpannerServer
	adminpb.UnimplementedDatabaseAdminServer

	mu        sync.Mutex
	databases map[string]*database
}

// at is the database of a session or of a database's own name, and the fake's name of the session.
func (s *server) at(name string) (*database, string, error) {
	path, session, _ := strings.Cut(name, "/sessions/")
	s.mu.Lock()
	defer s.mu.Unlock()
	db, ok := s.databases[path]
	if !ok {
		return nil, "", status.Errorf(codes.NotFound, "Database not found: %s", path)
	}
	return db, session, nil
}

// ---------------------------------------------------------------------------- databases

var created = regexp.MustCompile("CREATE DATABASE `([^`]+)`")

func (s *server) CreateDatabase(_ context.Context, r *adminpb.CreateDatabaseRequest) (*lropb.Operation, error) {
	found := created.FindStringSubmatch(r.CreateStatement)
	if found == nil {
		return nil, status.Error(codes.InvalidArgument, "no CREATE DATABASE")
	}
	fake, err := spannertest.NewServer("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	fake.SetLogger(func(string, ...interface{}) {})
	conn, err := grpc.NewClient(fake.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	name := r.Parent + "/databases/" + found[1]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.databases[name] = &database{
		fake:         fake,
		client:       spannerpb.NewSpannerClient(conn),
		conn:         conn,
		tables:       map[string]*table{},
		transactions: map[string]*transaction{},
	}
	return done(&adminpb.Database{Name: name})
}

func (s *server) DropDatabase(_ context.Context, r *adminpb.DropDatabaseRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if db, ok := s.databases[r.Database]; ok {
		db.conn.Close()
		db.fake.Close()
		delete(s.databases, r.Database)
	}
	return &emptypb.Empty{}, nil
}

func (s *server) UpdateDatabaseDdl(_ context.Context, r *adminpb.UpdateDatabaseDdlRequest) (*lropb.Operation, error) {
	db, _, err := s.at(r.Database)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, text := range r.Statements {
		statement, err := spansql.ParseDDLStmt(text)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "Error parsing Spanner DDL statement: %v", err)
		}
		if err := db.define(statement); err != nil {
			return nil, err
		}
	}
	return done(&emptypb.Empty{})
}

func (db *database) define(statement spansql.DDLStmt) error {
	changed := func() {}
	switch made := statement.(type) {
	case *spansql.CreateTable:
		name := string(made.Name)
		if strings.HasPrefix(name, "_") {
			return status.Errorf(codes.InvalidArgument, "Table name not valid: %s.", name)
		}
		for other := range db.tables {
			if other == name && made.IfNotExists {
				return nil
			}
			if strings.EqualFold(other, name) {
				return status.Errorf(codes.FailedPrecondition, "Duplicate name in schema: %s.", name)
			}
		}
		found := &table{}
		for i := range made.Columns {
			found.columns = append(found.columns, told(&made.Columns[i]))
		}
		for _, part := range made.PrimaryKey {
			found.key = append(found.key, string(part.Column))
		}
		changed = func() { db.tables[name] = found }
	case *spansql.DropTable:
		if _, there := db.tables[string(made.Name)]; !there && made.IfExists {
			return nil
		}
		changed = func() { delete(db.tables, string(made.Name)) }
	case *spansql.AlterTable:
		found, there := db.tables[string(made.Name)]
		if !there {
			return status.Errorf(codes.NotFound, "Table not found: %s", made.Name)
		}
		switch step := made.Alteration.(type) {
		case spansql.AddColumn:
			for _, old := range found.columns {
				if old.name == string(step.Def.Name) && step.IfNotExists {
					return nil
				}
			}
			added := told(&step.Def)
			made.Alteration = step
			changed = func() { found.columns = append(found.columns, added) }
		case spansql.DropColumn:
			changed = func() {
				for i, old := range found.columns {
					if old.name == string(step.Name) {
						found.columns = append(found.columns[:i:i], found.columns[i+1:]...)
						break
					}
				}
			}
		}
	}
	if err := db.fake.UpdateDDL(&spansql.DDL{List: []spansql.DDLStmt{statement}}); err != nil {
		return err
	}
	changed()
	db.commits++
	return nil
}

// told is a column as INFORMATION_SCHEMA tells it; what the fake gets is a type that it has.
func told(c *spansql.ColumnDef) column {
	found := column{string(c.Name), c.Type.SQL()}
	if c.Type.Base == spansql.Numeric || c.Type.Base == spansql.JSON {
		c.Type.Base, c.Type.Len = spansql.String, spansql.MaxLen
	}
	return found
}

func done(answer proto.Message) (*lropb.Operation, error) {
	packed, err := anypb.New(answer)
	if err != nil {
		return nil, err
	}
	return &lropb.Operation{
		Name: "done", Done: true, Result: &lropb.Operation_Response{Response: packed},
	}, nil
}

// ---------------------------------------------------------------------------- sessions

func (s *server) CreateSession(ctx context.Context, r *spannerpb.CreateSessionRequest) (*spannerpb.Session, error) {
	db, _, err := s.at(r.Database)
	if err != nil {
		return nil, err
	}
	made, err := db.client.CreateSession(ctx, r)
	if err != nil {
		return nil, err
	}
	made.Name = r.Database + "/sessions/" + made.Name
	return made, nil
}

func (s *server) DeleteSession(ctx context.Context, r *spannerpb.DeleteSessionRequest) (*emptypb.Empty, error) {
	db, session, err := s.at(r.Name)
	if err != nil {
		return nil, err
	}
	return db.client.DeleteSession(ctx, &spannerpb.DeleteSessionRequest{Name: session})
}

// ---------------------------------------------------------------------------- transactions

func (s *server) BeginTransaction(ctx context.Context, r *spannerpb.BeginTransactionRequest) (*spannerpb.Transaction, error) {
	db, session, err := s.at(r.Session)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	r.Session = session
	begun, err := db.client.BeginTransaction(ctx, r)
	if err == nil {
		db.transactions[string(begun.Id)] = &transaction{began: db.commits}
	}
	return begun, err
}

func (s *server) Rollback(ctx context.Context, r *spannerpb.RollbackRequest) (*emptypb.Empty, error) {
	db, session, err := s.at(r.Session)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.transactions, string(r.TransactionId))
	r.Session = session
	return db.client.Rollback(ctx, r)
}

func (s *server) Commit(ctx context.Context, r *spannerpb.CommitRequest) (*spannerpb.CommitResponse, error) {
	db, session, err := s.at(r.Session)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	id := string(r.GetTransactionId())
	known, ok := db.transactions[id]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "Transaction not found: %s", id)
	}
	delete(db.transactions, id)
	r.Session = session
	if known.reads && known.began != db.commits {
		_, _ = db.client.Rollback(ctx, &spannerpb.RollbackRequest{Session: session, TransactionId: []byte(id)})
		return nil, status.Error(codes.Aborted, "Transaction was aborted.")
	}
	if cells(r.Mutations) > mostMutations {
		return nil, status.Errorf(codes.InvalidArgument, "The transaction contains too many mutations.")
	}
	db.commits++
	answer, err := db.client.Commit(ctx, r)
	if status.Code(err) == codes.Unknown { // a value of another type than its column
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return answer, err
}

func cells(mutations []*spannerpb.Mutation) int {
	found := 0
	for _, m := range mutations {
		for _, write := range []*spannerpb.Mutation_Write{m.GetInsert(), m.GetUpdate(), m.GetInsertOrUpdate()} {
			found += len(write.GetColumns()) * len(write.GetValues())
		}
		keys := m.GetDelete().GetKeySet()
		found += len(keys.GetKeys()) + len(keys.GetRanges())
	}
	return found
}

// seen notes that a transaction read something, and gives the fake no part in it: its reads are of
// now, and a commit after another one is refused anyway.
func (db *database) seen(selector *spannerpb.TransactionSelector) {
	if known, ok := db.transactions[string(selector.GetId())]; ok {
		known.reads = true
	}
}

// ---------------------------------------------------------------------------- reads

func (s *server) Read(ctx context.Context, r *spannerpb.ReadRequest) (*spannerpb.ResultSet, error) {
	db, session, err := s.at(r.Session)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.seen(r.Transaction)
	r.Session, r.Transaction = session, nil
	stream, err := db.client.StreamingRead(ctx, r)
	if err != nil {
		return nil, err
	}
	found := &spannerpb.ResultSet{}
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		if part.Metadata != nil {
			found.Metadata = part.Metadata
		}
		if len(part.Values) > 0 {
			found.Rows = append(found.Rows, &structpb.ListValue{Values: part.Values})
		}
	}
}

// StreamingRead gives the rows in parts, as they come.
func (s *server) StreamingRead(r *spannerpb.ReadRequest, stream spannerpb.Spanner_StreamingReadServer) error {
	db, session, err := s.at(r.Session)
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	r.Session, r.Transaction = session, nil
	found, err := db.client.StreamingRead(stream.Context(), r)
	if err != nil {
		return err
	}
	for {
		part, err := found.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(part); err != nil {
			return err
		}
	}
}

func (s *server) ExecuteSql(ctx context.Context, r *spannerpb.ExecuteSqlRequest) (*spannerpb.ResultSet, error) {
	db, session, err := s.at(r.Session)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if rows := db.look(r.Sql); rows != nil {
		return rows, nil
	}
	db.seen(r.Transaction)
	r.Session, r.Transaction, r.Sql = session, nil, readable(r.Sql)
	return db.client.ExecuteSql(ctx, r)
}

// The fake knows no COALESCE in a condition, and parentheses not everywhere.
var coalesced = regexp.MustCompile(`WHERE (.* AND )?COALESCE\((\S+), -1\) (<=?) (\d+)`)

func readable(sql string) string {
	return coalesced.ReplaceAllString(sql, "WHERE ${1}${2} IS NULL OR ${1}${2} ${3} ${4}")
}

// ExecuteStreamingSql is for partitioned DML alone.
func (s *server) ExecuteStreamingSql(r *spannerpb.ExecuteSqlRequest, stream spannerpb.Spanner_ExecuteStreamingSqlServer) error {
	db, session, err := s.at(r.Session)
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.transactions, string(r.Transaction.GetId()))
	db.commits++
	r.Session, r.Sql = session, readable(r.Sql)
	r.Transaction = &spannerpb.TransactionSelector{
		Selector: &spannerpb.TransactionSelector_Id{Id: r.Transaction.GetId()},
	}
	changed, err := db.client.ExecuteSql(stream.Context(), r)
	if err != nil {
		return err
	}
	rows := changed.GetStats().GetRowCountExact()
	return stream.Send(&spannerpb.PartialResultSet{
		Metadata: &spannerpb.ResultSetMetadata{RowType: &spannerpb.StructType{}},
		Stats: &spannerpb.ResultSetStats{
			RowCount: &spannerpb.ResultSetStats_RowCountLowerBound{RowCountLowerBound: rows},
		},
	})
}

var asked = regexp.MustCompile(`LOWER\(TABLE_NAME\) = LOWER\('([^']*)'\)`)

// look answers the three questions that the sink has for INFORMATION_SCHEMA.
func (db *database) look(sql string) *spannerpb.ResultSet {
	if !strings.Contains(sql, "INFORMATION_SCHEMA.") {
		return nil
	}
	if strings.Contains(sql, "INFORMATION_SCHEMA.DATABASE_OPTIONS") {
		return answered([]string{"OPTION_VALUE"}, [][]string{{"GOOGLE_STANDARD_SQL"}})
	}
	var lines [][]string
	names := []string{"TABLE_NAME", "COLUMN_NAME", "SPANNER_TYPE"}
	var found *table
	var spelled string
	for name, one := range db.tables {
		if strings.EqualFold(name, asked.FindStringSubmatch(sql)[1]) {
			found, spelled = one, name
		}
	}
	if strings.Contains(sql, "INFORMATION_SCHEMA.INDEX_COLUMNS") {
		names = names[:2]
	}
	if found != nil && len(names) == 2 {
		for _, name := range found.key {
			lines = append(lines, []string{spelled, name})
		}
	} else if found != nil {
		for _, c := range found.columns {
			lines = append(lines, []string{spelled, c.name, c.kind})
		}
	}
	return answered(names, lines)
}

// answered is a result of texts.
func answered(names []string, lines [][]string) *spannerpb.ResultSet {
	answer := &spannerpb.ResultSet{
		Metadata: &spannerpb.ResultSetMetadata{RowType: &spannerpb.StructType{}},
	}
	for _, name := range names {
		answer.Metadata.RowType.Fields = append(answer.Metadata.RowType.Fields, &spannerpb.StructType_Field{
			Name: name, Type: &spannerpb.Type{Code: spannerpb.TypeCode_STRING},
		})
	}
	for _, line := range lines {
		row := &structpb.ListValue{}
		for _, text := range line {
			row.Values = append(row.Values, structpb.NewStringValue(text))
		}
		answer.Rows = append(answer.Rows, row)
	}
	return answer
}

func main() {
	address := flag.String("host_port", "127.0.0.1:0", "where to listen")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	ours := &server{databases: map[string]*database{}}
	front := grpc.NewServer(grpc.MaxRecvMsgSize(128 << 20))
	spannerpb.RegisterSpannerServer(front, ours)
	adminpb.RegisterDatabaseAdminServer(front, ours)
	fmt.Println("listening on", listener.Addr())
	log.Fatal(front.Serve(listener))
}
