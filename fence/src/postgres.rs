//! PostgreSQL, by the crate `postgres`. The statements come from [`sql`].

use postgres::types::{ToSql, Type};
use postgres::{Client, Error, Transaction};

use crate::error::{FenceError, Stale, checked};
use crate::sql;

/// Creates the table of the newest tokens, unless there is a table `wheellock_fence` with any
/// columns.
///
/// # Errors
///
/// Errors of the server. Another session may create the table at the same moment: transient.
pub fn create_table(client: &mut Client) -> Result<(), Error> {
    client.batch_execute(sql::CREATE_TABLE)
}

/// Raises the token of `resource` in `transaction`, to be called before the first read and write.
/// All writes of the transaction are committed with the token, or not at all. `transaction` is the
/// outermost transaction: a rollback to a savepoint takes the token back, and the outer transaction
/// goes on.
///
/// One round trip. The call waits while another transaction has raised the token of this resource
/// and is not committed. Set `lock_timeout` to limit this wait.
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
    // With the types of the parameters a single round trip is enough.
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&resource, Type::TEXT), (&number, Type::INT8)];
    match transaction.execute_typed(sql::RAISE, &parameters) {
        Ok(_) => Ok(()),
        Err(error) if is_stale(&error) => Err(FenceError::Stale(Stale::new(resource, token))),
        Err(error) => Err(FenceError::Resource(error)),
    }
}

/// Whether a statement failed because of a stale token. For custom statements with
/// [`sql::set_column`].
#[must_use]
pub fn is_stale(error: &Error) -> bool {
    error.as_db_error().and_then(|error| error.constraint()) == Some(sql::CONSTRAINT)
}
