package changefeed;

import java.util.Map;

/** A connection to a database, for questions. */
interface Client {
    /** Connect, as the command says. */
    void open(Map command) throws Exception;

    /** The answer to a command, as Jackson writes it. */
    Object answer(Map command) throws Exception;
}
