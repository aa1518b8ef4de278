//! tokio with a task for each lock: an interval, and a script on a shared connection.
//!
//! The connection is shared like the multiplexed one of the redis crate: tasks send their requests
//! into a channel, one task writes all that are in it, and another returns the replies in order.
//! The crate itself is not used, because its asynchronous half would then be built into the client
//! that is measured beside it. The runtime has one worker thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::lock::raw::encode;
use crate::watchdog::holders::scripts::{ScriptLock, owner};
use crate::watchdog::holders::{Holder, HolderConfig, lock_name};

static LOST: AtomicUsize = AtomicUsize::new(0);

/// A runtime with a task for each lock.
#[derive(Debug)]
pub(crate) struct TokioTasks {
    runtime: Runtime,
    connection: UnboundedSender<Request>,
    scripts: ScriptLock,
    interval: Duration,
}

#[derive(Debug)]
struct Request {
    text: String,
    reply: oneshot::Sender<Reply>,
}

/// `:1` or `:0`, with its end of line.
type Reply = [u8; 4];

impl Holder for TokioTasks {
    fn start(config: &HolderConfig) -> Self {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_io().enable_time().build();
        let runtime = runtime.expect("the system gives a thread");
        let stream = runtime.block_on(TcpStream::connect(config.address));
        let stream = stream.expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        let (replies, requests) = stream.into_split();
        let (connection, queued) = unbounded_channel();
        let (awaited, waiters) = unbounded_channel();
        runtime.spawn(write(requests, queued, awaited));
        runtime.spawn(read(BufReader::new(replies), waiters));
        let scripts = ScriptLock::new(config.address, config.lease);
        Self { runtime, connection, scripts, interval: config.interval() }
    }

    fn acquire(&mut self, held: usize) {
        for number in 0..held {
            let (name, owner) = (lock_name(number), owner(number));
            self.scripts.acquire(&name, &owner);
            let (hash, millis) = (&self.scripts.renew, &self.scripts.lease_millis);
            let request = encode(&["EVALSHA", hash, "1", &name, millis, &owner]);
            self.runtime.spawn(renew(self.connection.clone(), request, self.interval));
        }
    }

    fn lost(&self) -> usize {
        LOST.load(Ordering::Relaxed)
    }
}

/// The task of a lock, with its request.
async fn renew(connection: UnboundedSender<Request>, request: String, interval: Duration) {
    let mut ticks = interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (reply, replied) = oneshot::channel();
        // Either fails when the server has ended.
        if connection.send(Request { text: request.clone(), reply }).is_err() {
            return;
        }
        match replied.await {
            Ok(reply) if reply == *b":1\r\n" => {}
            Ok(_) => {
                LOST.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(_) => return,
        }
    }
}

/// Writes all requests that are in the channel.
async fn write(
    mut stream: OwnedWriteHalf,
    mut queued: UnboundedReceiver<Request>,
    awaited: UnboundedSender<oneshot::Sender<Reply>>,
) {
    let (mut requests, mut bytes) = (Vec::new(), Vec::new());
    while queued.recv_many(&mut requests, 1024).await > 0 {
        for request in requests.drain(..) {
            bytes.extend_from_slice(request.text.as_bytes());
            if awaited.send(request.reply).is_err() {
                return;
            }
        }
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
    }
}

/// Returns the replies to the tasks that wait for them.
async fn read(
    mut stream: BufReader<OwnedReadHalf>,
    mut waiters: UnboundedReceiver<oneshot::Sender<Reply>>,
) {
    let mut reply = Reply::default();
    while stream.read_exact(&mut reply).await.is_ok() {
        let Some(waiter) = waiters.recv().await else { return };
        // A failure means that the task has ended.
        waiter.send(reply).ok();
    }
}
