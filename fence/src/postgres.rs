//! PostgreSQL, by the crate `postgres`. The module [`sql`] has the statements.

use postgres::types::{ToSql, Type};
use postgres::{Client, Error, Transaction};

use crate::error::{FenceError, Stale, checked};
use crate::sql;

/// Creates the table of the newest tokens.
///
/// Does nothing if a table `wheellock_fence` exists, whatever its columns.
///
/// # Errors
///
/// The server's errors. The call may fail while a concurrent session creates the table: transient.
pub fn create_table(client: &mut Client) -> Result<(), Error> {
    client.batch_execute(sql::CREATE_TABLE)
}

/// Raises the token of `resource` in `transaction`. Call this function before the transaction's
/// first read and write: all writes of the transaction are committed with the token, or not at all.
/// `transaction` must be the outermost transaction, because a rollback to a savepoint also rolls
/// the token back, while the outer transaction continues.
///
/// The call takes one round trip, and waits while a concurrent transaction which has raised the
/// token of this resource is uncommitted. To limit the wait, set `lock_timeout`.
///
/// ```no_run
/// use postgres::{Client, NoTls};
/// use wheellock_fence::FenceError;
///
/// # fn main() -> Result<(), FenceError<postgres::Error>> {
/// # let token = 7;
/// let mut client = Client::connect("host=localhost user=orders", NoTls)?;
/// let mut transaction = client.transaction()?;
/// wheellock_fence::postgres::raise(&mut transaction, "orders:42", token)?;
/// transaction.execute("UPDATE orders SET state = 'paid' WHERE id = 42", &[])?;
/// transaction.commit()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// * [`FenceError::Stale`] - a newer token was committed. The server refuses all further statements
///   of the transaction. Permanent.
/// * [`FenceError::InvalidToken`] - nothing was sent. Permanent.
/// * [`FenceError::Resource`] - the server's error, such as a missing table.
pub fn raise(
    transaction: &mut Transaction<'_>,
    resource: &str,
    token: u64,
) -> Result<(), FenceError<Error>> {
    let number = checked(token)?;
    // With the parameters' types, a single round trip is enough.
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&resource, Type::TEXT), (&number, Type::INT8)];
    match transaction.execute_typed(sql::RAISE, &parameters) {
        Ok(_) => Ok(()),
        Err(error) if is_stale(&error) => Err(FenceError::Stale(Stale::new(resource, token))),
        Err(error) => Err(FenceError::Resource(error)),
    }
}

/// Returns whether a statement failed because of a stale token. For statements of your own, with
/// [`sql::set_column`].
#[must_use]
pub fn is_stale(error: &Error) -> bool {
    error.as_db_error().and_then(|error| error.constraint()) == Some(sql::CONSTRAINT)
}
