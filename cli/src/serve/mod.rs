//! `wheellock serve`: a page with all locks, and metrics for Prometheus.
//!
//! A request is answered on the main thread, from the last scan. The scan runs on a separate thread
//! ([`scanner`]), as the client blocks.
//!
//! HTTP is hyper's alone. axum lost: five routes need no router, and axum's `serve` has neither a
//! time limit for headers nor a limit of connections. A new HTTP server lost: a parser exposed to
//! the network is not worth writing again. Each connection serves a single request, so that a
//! single time limit bounds every kind of slow client.

mod access;
mod answer;
mod graph;
mod metrics;
mod scanner;
mod snapshot;
mod text;

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener as BlockingListener;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::Signal;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use self::access::Access;
use self::answer::{Site, answer};
use self::scanner::{Scanner, Settings};
use crate::arguments::Serve;
use crate::exit;
use crate::output::say;
use crate::run::signals;
use crate::server;

/// The most connections served at once. Further connections wait.
const CONNECTIONS: u32 = 64;

/// Limits for the header of a request: the time, and the number of bytes.
const HEADER_TIME: Duration = Duration::from_secs(5);
const HEADER_BYTES: usize = 16 * 1024;

/// Time limit for a connection, which serves a single request.
const CONNECTION_TIME: Duration = Duration::from_secs(30);

/// Time limit for requests under way after a signal.
const GRACE: Duration = Duration::from_secs(1);

/// The pause after a failure to accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until a signal, and returns the exit code.
pub(crate) fn serve(serve: Serve) -> Result<u8, Box<dyn Error>> {
    let access = Access::new(serve.listen, serve.token_file.as_deref())?;
    let listener = BlockingListener::bind(serve.listen)
        .map_err(|error| format!("--listen {}: {error}", serve.listen))?;
    listener.set_nonblocking(true)?;
    let client = server::connect(&serve.server, None)?;
    let (pattern, separator) = (serve.pattern, serve.prefix_separator);
    let scanner = Scanner::start(client, Settings { pattern, separator, refresh: serve.refresh })?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let site = Arc::new(Site { access, scanner });
    Ok(runtime.block_on(serve_until_a_signal(listener, site))?)
}

async fn serve_until_a_signal(listener: BlockingListener, site: Arc<Site>) -> io::Result<u8> {
    let listener = TcpListener::from_std(listener)?;
    // Set before the line is printed, as a reader of the line may send a signal.
    let mut endings = Vec::new();
    let ignored = signals::ignored();
    for ending in [Signal::INT, Signal::TERM] {
        // A signal ignored at the start stays ignored, such as SIGINT in a background job.
        if !ignored.contains(&ending.as_raw()) {
            endings.push((ending, signal(SignalKind::from_raw(ending.as_raw()))?));
        }
    }
    say(&format!("listening on http://{}/", listener.local_addr()?))?;
    let places = Arc::new(Semaphore::new(CONNECTIONS as usize));
    let accepting = tokio::spawn(accept(listener, Arc::clone(&places), site));
    let ending = poll_fn(|context| {
        let come = endings
            .iter_mut()
            .find_map(|(ending, stream)| stream.poll_recv(context).is_ready().then_some(*ending));
        come.map_or(Poll::Pending, Poll::Ready)
    });
    let ending = ending.await;
    accepting.abort();
    // All places are free once no request is under way.
    timeout(GRACE, places.acquire_many(CONNECTIONS)).await.ok();
    Ok(exit::signalled(ending.as_raw()))
}

async fn accept(listener: TcpListener, places: Arc<Semaphore>, site: Arc<Site>) {
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let site = Arc::clone(&site);
        tokio::spawn(async move {
            // A broken or slow connection affects no other client.
            timeout(CONNECTION_TIME, serve_one(stream, site)).await.ok();
            drop(place);
        });
    }
}

/// Serves a single request, without reading the body.
async fn serve_one(stream: TcpStream, site: Arc<Site>) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(answer(&site, &request.into_parts().0).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}
