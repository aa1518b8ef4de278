//! A web service whose handlers take locks: axum on tokio.
//!
//! ```sh
//! cargo run --example axum_service -- redis://127.0.0.1/ 127.0.0.1:8080 2
//! curl -X POST http://127.0.0.1:8080/orders/42/ship/1000
//! ```
//!
//! The arguments are the server's URL, the service's address, and for how many seconds a request
//! waits for its lock. A request for `/orders/ID/ship/MILLIS` works for that time under the lock
//! `orders:ID`. Every call of the client blocks, so it is made on a thread of tokio's blocking
//! pool; the work under the lock is async, and ends when the lock is lost.

#![expect(clippy::print_stdout, reason = "a program with a line of output")]

use std::env;
use std::error::Error as StdError;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use wheellock::crossbeam_channel::bounded;
use wheellock::{Client, Error, OwnedGuard, Wait};

/// How many requests may wait for a lock at the same time. Each occupies a thread of the blocking
/// pool, of which tokio has 512, and which other work needs too.
const MAX_WAITING: usize = 64;
/// How long the last releases may take.
const LAST_RELEASES: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Locks {
    client: Client,
    /// A permit for each request that waits.
    waiting: Arc<Semaphore>,
    limit: Duration,
}

impl Locks {
    /// `None` if the lock could not be had in time.
    async fn acquire(&self, name: String) -> Result<Option<OwnedGuard>, Failure> {
        let waiting = Arc::clone(&self.waiting).acquire_owned().await.map_err(internal)?;
        let (client, limit) = (self.client.clone(), self.limit);
        // If this future is dropped, because the requester has gone, `_keep` is dropped with it,
        // and the wait ends.
        let (_keep, cancelled) = bounded(0);
        blocking(move || {
            let _waiting = waiting;
            let wait = Wait::at_most(limit).or_cancelled(&cancelled);
            client.lock(&name).sendable().try_lock_with(wait)
        })
        .await
    }
}

/// What is answered instead of a result.
type Failure = (StatusCode, String);

/// Runs a call that blocks on a thread that may be blocked.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(call).await.map_err(internal)?.map_err(unavailable)
}

fn internal(error: impl StdError) -> Failure {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn unavailable(error: impl StdError) -> Failure {
    (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

async fn ship(
    State(locks): State<Locks>,
    Path((order, millis)): Path<(String, u64)>,
) -> Result<String, Failure> {
    let Some(guard) = locks.acquire(format!("orders:{order}")).await? else {
        return Err((StatusCode::CONFLICT, format!("order {order} is being worked on")));
    };
    // Whatever ends this function early drops the guard here. That sends the release, and does not
    // wait for the answer.
    tokio::select! {
        Some(reason) = guard.lost_future().map_err(unavailable)? => {
            Err((StatusCode::SERVICE_UNAVAILABLE, format!("the lock was lost: {reason}")))
        }
        () = work(Duration::from_millis(millis)) => {
            // Waits for the answer, which says whether the lock was held until now.
            blocking(|| guard.unlock()).await?;
            Ok(format!("order {order} is shipped"))
        }
    }
}

/// Stands for the async work of a service.
async fn work(length: Duration) {
    tokio::time::sleep(length).await;
}

async fn health(State(locks): State<Locks>) -> Result<&'static str, Failure> {
    blocking(move || locks.client.ping()).await?;
    Ok("the lock server answers")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let limit = arguments.next().map_or(Ok(2.0), |seconds| seconds.parse())?;
    let limit = Duration::try_from_secs_f64(limit)?;

    // The service starts although the lock server may be down: its health tells.
    let builder = Client::builder().url(&url).watchdog_lease(Duration::from_secs(6));
    let client = builder.connect_lazily().build()?;
    let waiting = Arc::new(Semaphore::new(MAX_WAITING));
    let locks = Locks { client: client.clone(), waiting, limit };
    let service = Router::new()
        .route("/orders/{order}/ship/{millis}", post(ship))
        .route("/health", get(health))
        .with_state(locks);

    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    io::stdout().flush()?;
    axum::serve(listener, service)
        .with_graceful_shutdown(async move { terminate.recv().await.unwrap_or_default() })
        .await?;

    // Every request is answered. What they have dropped may still be on its way.
    let report = spawn_blocking(move || client.shutdown(LAST_RELEASES)).await?;
    println!("ended, unreleased: {:?}", report.unreleased);
    Ok(())
}
