//! tokio with a task for each lock: an interval, and a script on one shared connection.
//!
//! The connection is shared as the redis crate's multiplexed one is: tasks send their requests into a channel, one task
//! writes what has come together, another hands the replies back in order. The crate itself is not used, because its
//! asynchronous half would then be built into the client that is measured beside it. The runtime has one worker thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::raw::encode;
use crate::renewing::keepers::taking::{Taker, owner};
use crate::renewing::keepers::{Keeper, Target, lock_name};

static LOST: AtomicUsize = AtomicUsize::new(0);

/// A runtime with a task for each lock.
#[derive(Debug)]
pub(crate) struct TokioTasks {
    runtime: Runtime,
    connection: UnboundedSender<Request>,
    taker: Taker,
    interval: Duration,
}

#[derive(Debug)]
struct Request {
    text: String,
    reply: oneshot::Sender<Reply>,
}

/// `:1` or `:0`, with its end of line.
type Reply = [u8; 4];

impl Keeper for TokioTasks {
    fn start(target: &Target) -> Self {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_io().enable_time().build();
        let runtime = runtime.expect("the system gives a thread");
        let stream = runtime.block_on(TcpStream::connect(target.address));
        let stream = stream.expect("the server listens");
        stream.set_nodelay(true).expect("a socket has the option");
        let (replies, requests) = stream.into_split();
        let (connection, asked) = unbounded_channel();
        let (awaited, waiters) = unbounded_channel();
        runtime.spawn(write(requests, asked, awaited));
        runtime.spawn(read(BufReader::new(replies), waiters));
        let taker = Taker::new(target.address, target.lease);
        Self { runtime, connection, taker, interval: target.interval() }
    }

    fn take(&mut self, held: usize) {
        for number in 0..held {
            let (name, owner) = (lock_name(number), owner(number));
            self.taker.take(&name, &owner);
            let (hash, millis) = (&self.taker.renew, &self.taker.lease_millis);
            let request = encode(&["EVALSHA", hash, "1", &name, millis, &owner]);
            self.runtime.spawn(keep(self.connection.clone(), request, self.interval));
        }
    }

    fn lost(&self) -> usize {
        LOST.load(Ordering::Relaxed)
    }
}

/// The task of a lock. It has its request ready.
async fn keep(connection: UnboundedSender<Request>, request: String, interval: Duration) {
    let mut ticks = interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (reply, replied) = oneshot::channel();
        // Either fails when the server ends.
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

/// Writes what has come together.
async fn write(
    mut stream: OwnedWriteHalf,
    mut asked: UnboundedReceiver<Request>,
    awaited: UnboundedSender<oneshot::Sender<Reply>>,
) {
    let (mut requests, mut bytes) = (Vec::new(), Vec::new());
    while asked.recv_many(&mut requests, 1024).await > 0 {
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

/// Hands the replies to those who wait for them.
async fn read(
    mut stream: BufReader<OwnedReadHalf>,
    mut waiters: UnboundedReceiver<oneshot::Sender<Reply>>,
) {
    let mut reply = Reply::default();
    while stream.read_exact(&mut reply).await.is_ok() {
        let Some(waiter) = waiters.recv().await else { return };
        // A failure means that its task is gone.
        waiter.send(reply).ok();
    }
}
