//! SQL statements by which a transaction refuses a stale token. The statements are plain text, the
//! same for PostgreSQL and SQLite, and run in any client.
//!
//! There are two forms. Choose the table if a lock protects several rows or tables, and the column
//! if a lock protects single rows of a table.
//!
//! **The table.** [`CREATE_TABLE`] creates the table `wheellock_fence`, with the newest token of
//! each resource. [`RAISE`] is the first statement of each writing transaction, before any read:
//! the statement raises the token, or fails. Afterwards, no older holder changes the data that the
//! transaction reads, and all writes of the transaction are committed with the token, or not at
//! all. Raise the token outside of savepoints, because a rollback to a savepoint also rolls the
//! token back.
//!
//! ```sql
//! BEGIN;
//! -- RAISE, with the name of the resource and the token
//! UPDATE accounts SET balance = balance - 50 WHERE id = 7;
//! COMMIT;
//! ```
//!
//! **The column.** [`COLUMN`] is the definition of a column `fencing_token` for your table, and
//! [`set_column`] an assignment for each `UPDATE` of a row: the statement writes the row, or fails.
//! Deleting and inserting a row again loses the row's token, and a `DELETE` needs `WHERE
//! fencing_token <= $1`.
//!
//! ```sql
//! UPDATE accounts
//! SET balance = $2, fencing_token = CASE WHEN fencing_token <= $1 THEN $1 ELSE -1 END
//! WHERE id = $3;
//! ```
//!
//! **How a statement fails.** A stale token violates the check [`CONSTRAINT`]. The check's name is
//! in the message, and distinguishes a stale token from all further errors: in PostgreSQL the error
//! has the code 23514 and the field `constraint_name`, in SQLite the extended code 275. Roll the
//! transaction back then. PostgreSQL refuses all further statements of the transaction until the
//! rollback. SQLite does not: the program `sqlite3` needs the option `-bail`, `UPDATE OR IGNORE`
//! ignores the check, and the pragma `ignore_check_constraints` disables the check.
//!
//! **Other writers.** [`RAISE`] waits while a concurrent transaction which has raised the token of
//! the same resource is uncommitted. A process paused within a transaction blocks further writers:
//! in PostgreSQL set `idle_in_transaction_session_timeout`, below the lock's lease. Under
//! `REPEATABLE READ` and `SERIALIZABLE` a transaction fails with the code 40001 after such a wait,
//! and must be retried.
//!
//! With the crate `sqlx`:
//!
//! ```text
//! let raised = sqlx::query(sql::RAISE).bind("orders:42").bind(token).execute(&mut *transaction).await;
//! if let Err(sqlx::Error::Database(error)) = &raised
//!     && error.message().contains(sql::CONSTRAINT)
//! {
//!     // Stale: drop the transaction, which rolls the transaction back.
//! }
//! ```

/// Creates the table of the newest tokens. The statement has no parameters, and does nothing if the
/// table exists.
///
/// PostgreSQL may refuse the statement while a concurrent session creates the same table: put the
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

/// Returns an assignment for the `SET` of an `UPDATE` of a table with the [`COLUMN`]. `parameter`
/// is the client's name for the token's parameter, such as `$1` or `?1`.
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

/// The name of the check that a stale token violates.
pub const CONSTRAINT: &str = "stale_fencing_token";
