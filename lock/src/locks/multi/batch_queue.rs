//! Batches of locks. Several threads send many batches at the same time.
//!
//! Each thread relies on the handling of retries, redirections and late copies in a call. A
//! pipeline would need a second implementation.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::thread;

use crate::model::sync::Mutex;

/// The maximum number of threads besides the calling thread. While the server runs a batch, the
/// client prepares the next batch; in a cluster, the requests for several hash slots are in flight
/// together. More threads gained nothing on two cores.
const MAX_HELPERS: usize = 3;

/// The number of batches that makes a further thread worth the start.
const BATCHES_FOR_EACH: usize = 4;

/// The batches to be sent; `None` once [closed](Self::close).
pub(crate) struct BatchQueue<B>(Mutex<Option<VecDeque<B>>>);

impl<B: Send> BatchQueue<B> {
    /// Returns an open queue of `batches`.
    pub(crate) fn new(batches: impl IntoIterator<Item = B>) -> Self {
        Self(Mutex::new(Some(batches.into_iter().collect())))
    }

    /// Calls `send` with each batch: on the calling thread, and for many batches also on up to
    /// [`MAX_HELPERS`] threads. Returns after the last batch. A panic of `send` resumes on the
    /// calling thread.
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
                // Without a helper, the running threads send all batches.
                thread.spawn_scoped(scope, send_all).ok()
            };
            let started: Vec<_> = (0..helpers).filter_map(|_| start()).collect();
            send_all();
            for helper in started {
                helper.join().unwrap_or_else(|payload| resume_unwind(payload));
            }
        });
    }

    /// Adds `batches` at the end of the queue, unless the queue is closed.
    pub(crate) fn push(&self, batches: impl IntoIterator<Item = B>) {
        if let Some(queue) = &mut *self.0.lock() {
            queue.extend(batches);
        }
    }

    /// Closes the queue and drops the batches in the queue. A batch in flight is not affected.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    /// Removes the first batch. Returns `None` if the queue is empty or closed.
    fn pop(&self) -> Option<B> {
        self.0.lock().as_mut()?.pop_front()
    }

    /// Returns the number of batches in the queue, zero once closed.
    fn len(&self) -> usize {
        self.0.lock().as_ref().map_or(0, VecDeque::len)
    }
}
