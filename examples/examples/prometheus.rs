//! Exports a client's metrics to Prometheus, while threads fight over a lock.
//!
//! The recorder is that of the crate `metrics-exporter-prometheus`; a small HTTP server answers
//! whoever asks. `lock/docs/grafana/wheellock.json` is a dashboard for what it exports.
//!
//! ```text
//! cargo run --features prometheus --example prometheus -- redis://127.0.0.1/ 127.0.0.1:9100
//! curl http://127.0.0.1:9100/metrics
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::env;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crossbeam_channel::never;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use wheellock::{Client, Error as LockError};

/// From a tenth of a millisecond to the default lease.
const SECONDS: &[f64] = &[0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

/// How long a connection may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let address = env::args().nth(2).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    // Before the client: it describes its metrics when it starts.
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .install_recorder()?;
    let client = Client::builder().url(&url).watchdog_lease(Duration::from_secs(2)).build()?;
    let listener = TcpListener::bind(address)?;
    println!("metrics at http://{}/metrics", listener.local_addr()?);

    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| for_ever(|| fight(&client)));
        }
        scope.spawn(|| for_ever(|| hold(&client)));
        for connection in listener.incoming() {
            // One that broke concerns nobody else.
            if let Err(error) = connection.and_then(|connection| answer(connection, &metrics)) {
                println!("a reader of the metrics went away: {error}");
            }
        }
    });
    Ok(())
}

/// Acquires a lock that others want too. Its metrics have a label.
fn fight(client: &Client) -> Result<(), LockError> {
    let lock = client.lock("example:fought for").with_metrics_label("fought for");
    lock.lock().map(drop)
}

/// Holds a lock until it is lost.
fn hold(client: &Client) -> Result<(), LockError> {
    let guard = client.lock("example:held").lock()?;
    // The channel has a message when the lock is lost.
    guard.lost().recv().ok();
    Ok(())
}

/// Does something again and again. After an error it waits a moment.
fn for_ever(mut action: impl FnMut() -> Result<(), LockError>) {
    loop {
        let error = action().err();
        if let Some(error) = &error {
            println!("{error}");
        }
        pause(Duration::from_millis(if error.is_some() { 100 } else { 2 }));
    }
}

fn pause(time: Duration) {
    // It gets no message: it ends by time.
    let _timeout = never::<()>().recv_timeout(time);
}

/// Answers one request, whatever it asks for.
fn answer(connection: TcpStream, metrics: &PrometheusHandle) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    // The request ends with an empty line.
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let body = metrics.render();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let mut connection = reader.into_inner();
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())
}
