//! SQL statements by which a transaction refuses a stale token. They are plain text, the same for
//! PostgreSQL and SQLite, and run by any client.
//!
//! There are two forms. Choose the table if a lock protects several rows or tables, and the column
//! if the lock protects single rows of a table.
//!
//! **The table.** [`CREATE_TABLE`] creates the table `wheellock_fence`, with the newest token of
//! each resource. [`RAISE`] is the first statement of each transaction that writes, before its
//! reads: the statement raises the token, or fails. Rows read afterwards are no longer changed by
//! an older holder, and all writes of the transaction are committed with the token, or not at all.
//! The fence covers the whole transaction: within a savepoint, a rollback to the savepoint takes
//! the token back.
//!
//! ```sql
//! BEGIN;
//! -- RAISE, with the name of the resource and the token
//! UPDATE accounts SET balance = balance - 50 WHERE id = 7;
//! COMMIT;
//! ```
//!
//! **The column.** [`COLUMN`] is the definition of a column `fencing_token` for a custom table, and
//! [`set_column`] an assignment for each `UPDATE` of a row: the statement writes the row, or fails.
//! Rows that are deleted and inserted again forget their token, and a `DELETE` needs `WHERE
//! fencing_token <= $1`.
//!
//! ```sql
//! UPDATE accounts
//! SET balance = $2, fencing_token = CASE WHEN fencing_token <= $1 THEN $1 ELSE -1 END
//! WHERE id = $3;
//! ```
//!
//! **How a statement fails.** A stale token violates the check [`CONSTRAINT`]. The name of the
//! check is in the message, and tells a stale token from all other errors: in PostgreSQL the error
//! has the code 23514 and the field `constraint_name`, in SQLite the extended code 275. The
//! transaction must be rolled back then. Until then PostgreSQL refuses all further statements of
//! the transaction. SQLite does not: the program `sqlite3` needs the option `-bail`, `UPDATE OR
//! IGNORE` ignores the check, and the pragma `ignore_check_constraints` disables the check.
//!
//! **Other writers.** [`RAISE`] waits while another transaction has raised the token of the same
//! resource and is not committed. A process paused within its transaction blocks other writers: in
//! PostgreSQL set `idle_in_transaction_session_timeout`, below the lock's lease. Under `REPEATABLE
//! READ` and `SERIALIZABLE` a transaction that has waited fails with the code 40001, and is run
//! again.
//!
//! With the crate `sqlx`:
//!
//! ```text
//! let raised = sqlx::query(sql::RAISE).bind("orders:42").bind(token).execute(&mut *transaction).await;
//! if let Err(sqlx::Error::Database(error)) = &raised
//!     && error.message().contains(sql::CONSTRAINT)
//! {
//!     // Stale: the transaction is dropped, and so rolled back.
//! }
//! ```

/// Creates the table of the newest tokens, unless the table exists. The statement has no
/// parameters.
///
/// PostgreSQL may refuse the statement while another session creates the same table: put the
/// statement in a migration.
pub const CREATE_TABLE: &str = "\
CREATE TABLE IF NOT EXISTS wheellock_fence (
  resource text NOT NULL PRIMARY KEY,
  token bigint NOT NULL CONSTRAINT stale_fencing_token CHECK (token >= 0)
)";

/// Raises the token of a resource, or fails. `$1` is the resource's name, a text, and `$2` the
/// token, a 64-bit number.
///
/// ```
/// use rusqlite::{Connection, params};
/// use wheellock_fence::sql;
///
/// let database = Connection::open_in_memory()?;
/// database.execute(sql::CREATE_TABLE, [])?;
/// database.execute(sql::RAISE, params!["orders:42", 7])?;
/// database.execute(sql::RAISE, params!["orders:42", 7])?;
/// let stale = database.execute(sql::RAISE, params!["orders:42", 6]).unwrap_err();
/// assert!(stale.to_string().contains(sql::CONSTRAINT));
/// # Ok::<(), rusqlite::Error>(())
/// ```
pub const RAISE: &str = "\
INSERT INTO wheellock_fence (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token =
  CASE WHEN wheellock_fence.token <= excluded.token THEN excluded.token ELSE -1 END";

/// The definition of a column for the newest token of each row, for `CREATE TABLE` or `ALTER TABLE
/// .. ADD COLUMN`.
pub const COLUMN: &str = "\
fencing_token bigint NOT NULL DEFAULT 0 CONSTRAINT stale_fencing_token CHECK (fencing_token >= 0)";

/// An assignment for the `SET` of an `UPDATE` of a table with the column [`COLUMN`]. `parameter` is
/// the client's name for the parameter of the token, such as `$1` or `?1`.
///
/// ```
/// use rusqlite::{Connection, params};
/// use wheellock_fence::sql;
///
/// let database = Connection::open_in_memory()?;
/// let columns = format!("id integer PRIMARY KEY, balance bigint, {}", sql::COLUMN);
/// database.execute(&format!("CREATE TABLE accounts ({columns})"), [])?;
/// database.execute("INSERT INTO accounts (id, balance) VALUES (7, 100)", [])?;
///
/// let set_token = sql::set_column("?1");
/// let update = format!("UPDATE accounts SET balance = ?2, {set_token} WHERE id = ?3");
/// database.execute(&update, params![7, 150, 7])?;
/// let stale = database.execute(&update, params![6, 101, 7]).unwrap_err();
/// assert!(stale.to_string().contains(sql::CONSTRAINT));
/// # Ok::<(), rusqlite::Error>(())
/// ```
#[must_use]
pub fn set_column(parameter: &str) -> String {
    format!("fencing_token = CASE WHEN fencing_token <= {parameter} THEN {parameter} ELSE -1 END")
}

/// The name of the check violated by a stale token.
pub const CONSTRAINT: &str = "stale_fencing_token";
