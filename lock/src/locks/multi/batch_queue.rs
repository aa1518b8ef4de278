//! Batches of locks, sent by several threads at the same time if there are many.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::thread;

use crate::model::sync::Mutex;

/// The most threads that help the calling thread. While the server works on one batch, the client
/// prepares the next one; in a cluster, the requests of several slots are on their way at once.
const MAX_HELPERS: usize = 3;

/// How many batches a further thread needs to be worth its start.
const BATCHES_FOR_EACH: usize = 4;

/// What is still to be sent. `None` once it is [closed](Self::close).
pub(crate) struct BatchQueue<B>(Mutex<Option<VecDeque<B>>>);

impl<B: Send> BatchQueue<B> {
    pub(crate) fn new(batches: impl IntoIterator<Item = B>) -> Self {
        Self(Mutex::new(Some(batches.into_iter().collect())))
    }

    /// Calls `send` with each batch: on the calling thread, and of many batches on a few others too.
    /// Returns when the last batch was sent. A panic of `send` goes on in the calling thread.
    pub(crate) fn run(&self, send: impl Fn(B) + Sync) {
        let send_all = || {
            while let Some(batch) = self.pop() {
                send(batch);
            }
        };
        let helpers = (self.len() / BATCHES_FOR_EACH).min(MAX_HELPERS);
        thread::scope(|scope| {
            let start = || {
                let thread = thread::Builder::new().name("lock-member".to_owned());
                // Without a helper, the other threads send its batches.
                thread.spawn_scoped(scope, send_all).ok()
            };
            let started: Vec<_> = (0..helpers).filter_map(|_| start()).collect();
            send_all();
            for helper in started {
                helper.join().unwrap_or_else(|payload| resume_unwind(payload));
            }
        });
    }

    /// Adds what is to be sent too, unless the queue is closed.
    pub(crate) fn push(&self, batches: impl IntoIterator<Item = B>) {
        if let Some(queue) = &mut *self.0.lock() {
            queue.extend(batches);
        }
    }

    /// Nothing more is sent but what is being sent.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    fn pop(&self) -> Option<B> {
        self.0.lock().as_mut()?.pop_front()
    }

    fn len(&self) -> usize {
        self.0.lock().as_ref().map_or(0, VecDeque::len)
    }
}
