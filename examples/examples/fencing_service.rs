//! A web service that refuses stale writers: axum on tokio, with SQLite.
//!
//! A client of the service holds a lock while it works on an order, and sends the fencing token of
//! the lock in a header with each write. The service knows nothing of locks. It stores the newest
//! token of each order, in the transaction that writes the order, and answers
//!
//! | status | meaning |
//! |---|---|
//! | 204 | the order is written |
//! | 400 | the request has no token, or something else in the token's place |
//! | 412 | the token is stale: a newer holder has written the order, and nothing was changed |
//!
//! Look at [`put_order`] and [`write`]. The program starts the service on a loopback port, plays
//! two clients of the service in [`story`], and ends.
//!
//! ```text
//! cargo run --features fencing --example fencing_service
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use ureq::Agent;
use wheellock::{Client, ManualClock, Memory};
use wheellock_fence::{FenceError, HTTP_HEADER, sqlite};

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError + Send + Sync>> {
    let service = Router::new()
        .route("/orders/{id}", get(get_order).put(put_order))
        .with_state(Database::open()?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let orders = format!("http://{}/orders", listener.local_addr()?);
    // The story blocks, as the calls of the lock's client and of ureq do.
    let story = spawn_blocking(move || story(&orders));
    tokio::select! {
        served = axum::serve(listener, service) => Ok(served?),
        told = story => told?,
    }
}

/// What is answered instead of a result.
type Failure = (StatusCode, String);

/// Writes the state of an order, if the token of the request is not stale.
async fn put_order(
    State(database): State<Database>,
    Path(id): Path<i64>,
    headers: HeaderMap,
    state: String,
) -> Result<StatusCode, Failure> {
    let token = token(&headers)?;
    let written = database.call(move |database| write(database, id, token, &state)).await?;
    match written {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => {
            let status = match &error {
                FenceError::Stale(_) => StatusCode::PRECONDITION_FAILED,
                FenceError::InvalidToken { .. } => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Err((status, error.to_string()))
        }
    }
}

/// The token of a request: one header, with decimal digits and nothing else.
fn token(headers: &HeaderMap) -> Result<u64, Failure> {
    let bad = |problem: &str| (StatusCode::BAD_REQUEST, format!("{HTTP_HEADER}: {problem}"));
    let mut values = headers.get_all(HTTP_HEADER).iter();
    let value = values.next().ok_or_else(|| bad("a write needs the token of a lock"))?;
    if values.next().is_some() {
        return Err(bad("a request has one token"));
    }
    // `parse` alone would accept a plus sign.
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|sign| sign.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| bad("a token is a decimal number"))
}

/// The token is raised in the transaction of the write. Both are committed, or neither is.
///
/// Each order is a resource of its own, so a token of one order refuses no write of another order.
fn write(
    database: &mut Connection,
    id: i64,
    token: u64,
    state: &str,
) -> Result<(), FenceError<rusqlite::Error>> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // An error drops the transaction, which rolls it back.
    sqlite::raise(&transaction, &format!("orders:{id}"), token)?;
    transaction
        .execute("INSERT OR REPLACE INTO orders (id, state) VALUES (?1, ?2)", (id, state))?;
    transaction.commit()?;
    Ok(())
}

async fn get_order(
    State(database): State<Database>,
    Path(id): Path<i64>,
) -> Result<String, Failure> {
    let read = move |database: &mut Connection| {
        let select = "SELECT state FROM orders WHERE id = ?1";
        database.query_row(select, [id], |row| row.get(0)).optional()
    };
    let state = database.call(read).await?.map_err(internal)?;
    state.ok_or((StatusCode::NOT_FOUND, format!("there is no order {id}")))
}

/// The database of the service. One connection is enough: SQLite has one writer at a time.
#[derive(Clone)]
struct Database(Arc<Mutex<Connection>>);

impl Database {
    /// A new database with one order, and with the table of the newest tokens.
    fn open() -> rusqlite::Result<Self> {
        let database = Connection::open_in_memory()?;
        sqlite::create_table(&database)?;
        database.execute("CREATE TABLE orders (id integer PRIMARY KEY, state text)", [])?;
        database.execute("INSERT INTO orders VALUES (42, 'new')", [])?;
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    /// Calls SQLite on a thread that may be blocked.
    ///
    /// SQLite waits for the disk and for other writers, and the mutex for other requests. On a
    /// thread of the runtime, such a wait would stop all requests that the thread serves.
    /// `spawn_blocking` also runs the call to its end if the requester goes away, so a transaction
    /// is never dropped in the middle.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let database = Arc::clone(&self.0);
        spawn_blocking(move || {
            let mut database = database.lock().map_err(|error| internal(error.to_string()))?;
            Ok(call(&mut database))
        })
        .await
        .map_err(internal)?
    }
}

fn internal(error: impl fmt::Display) -> Failure {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// Two clients of the service, as two processes would play them. The first one is paused for longer
/// than the lease of its lock, and then writes.
fn story(orders: &str) -> Result<(), Box<dyn StdError + Send + Sync>> {
    // The program sets the time, so that a pause of a minute takes no time.
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let slow = Client::builder().in_memory(&memory).build()?;
    let quick = Client::builder().in_memory(&memory).build()?;
    let order = Order::new(format!("{orders}/42"));

    let guard = slow.lock("orders:42").with_lease(Duration::from_secs(30)).lock()?;
    let token = guard.draw_token()?;
    println!("slow   acquires the lock with token {token}, and reads: {}", order.get()?);

    clock.advance(Duration::from_secs(60));
    println!("slow   is paused for a minute; its lease was 30 s");

    let rival = quick.lock("orders:42").lock()?;
    let newer_token = rival.draw_token()?;
    println!("quick  acquires the lock with token {newer_token}");
    println!("quick  puts cancelled: {}", order.put(Some(&newer_token.to_string()), "cancelled")?);
    rival.unlock()?;

    // Slow checked `is_held` before the pause, and does not check it again.
    println!("slow   puts shipped: {}", order.put(Some(&token.to_string()), "shipped")?);
    println!("       the order is {}", order.get()?);

    println!("other  puts shipped without a token: {}", order.put(None, "shipped")?);
    println!("other  puts shipped with token seven: {}", order.put(Some("seven"), "shipped")?);
    println!("       the order is {}", order.get()?);
    Ok(())
}

/// An order, as a client of the service sees it.
struct Order {
    agent: Agent,
    url: String,
}

impl Order {
    fn new(url: String) -> Self {
        // The story shows statuses that ureq would return as errors.
        let config = Agent::config_builder().http_status_as_error(false).build();
        Self { agent: config.into(), url }
    }

    fn get(&self) -> Result<String, ureq::Error> {
        self.agent.get(&self.url).call()?.body_mut().read_to_string()
    }

    /// Sends a write, and returns the status and the text of the answer.
    fn put(&self, token: Option<&str>, state: &str) -> Result<String, ureq::Error> {
        let mut request = self.agent.put(&self.url);
        if let Some(token) = token {
            request = request.header(HTTP_HEADER, token);
        }
        let mut answer = request.send(state)?;
        let text = answer.body_mut().read_to_string()?;
        Ok(format!("{} {text}", answer.status().as_u16()).trim_end().to_owned())
    }
}
