//! SQLite, by the crate `rusqlite`. The statements come from [`sql`].

use rusqlite::{Connection, Error, Transaction, ffi, params};

use crate::error::{FenceError, Stale, checked};
use crate::sql;

/// Creates the table of the newest tokens, unless there is a table `wheellock_fence` with any
/// columns.
///
/// # Errors
///
/// Errors of SQLite, such as a busy database.
pub fn create_table(connection: &Connection) -> Result<(), Error> {
    connection.execute_batch(sql::CREATE_TABLE)
}

/// Raises the token of `resource` in `transaction`, to be called before the first read and write.
/// All writes of the transaction are committed with the token, or not at all.
///
/// Begin the transaction with `TransactionBehavior::Immediate`: a transaction that has read before
/// its first write may be refused as busy, with any `busy_timeout`.
///
/// ```
/// use rusqlite::{Connection, TransactionBehavior};
/// use wheellock_fence::{FenceError, sqlite};
///
/// let mut database = Connection::open_in_memory()?;
/// sqlite::create_table(&database)?;
/// database.execute("CREATE TABLE orders (id integer PRIMARY KEY, state text)", [])?;
///
/// let mut pay = |token| {
///     let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     sqlite::raise(&transaction, "orders:42", token)?;
///     transaction.execute("INSERT OR REPLACE INTO orders VALUES (42, 'paid')", [])?;
///     transaction.commit()?;
///     Ok(())
/// };
/// pay(7)?;
/// assert!(matches!(pay(6), Err(FenceError::Stale(_))));
/// # Ok::<(), FenceError<rusqlite::Error>>(())
/// ```
///
/// # Errors
///
/// * [`FenceError::Stale`] - a newer token was committed. Drop the transaction, which rolls back:
///   SQLite itself would go on with the next statement. Permanent.
/// * [`FenceError::InvalidToken`] - nothing was done. Permanent.
/// * [`FenceError::Resource`] - the error of SQLite, such as a missing table.
pub fn raise(
    transaction: &Transaction<'_>,
    resource: &str,
    token: u64,
) -> Result<(), FenceError<Error>> {
    let number = checked(token)?;
    match transaction.execute(sql::RAISE, params![resource, number]) {
        Ok(_) => Ok(()),
        Err(error) if is_stale(&error) => Err(FenceError::Stale(Stale::new(resource, token))),
        Err(error) => Err(FenceError::Resource(error)),
    }
}

/// Whether a statement failed because of a stale token. For custom statements with
/// [`sql::set_column`].
#[must_use]
pub fn is_stale(error: &Error) -> bool {
    let Error::SqliteFailure(failure, Some(message)) = error else { return false };
    failure.extended_code == ffi::SQLITE_CONSTRAINT_CHECK && message.ends_with(sql::CONSTRAINT)
}
