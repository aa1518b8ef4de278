//! Wakes the tasks which await the loss of a hold, on a separate thread.
//!
//! A waker is foreign code: it may block, panic, call the client or drop its last handle. The
//! thread which finds a loss (the ticker, a renewal thread, a caller) only queues the tasks'
//! wakers. The thread `lock-wakers` starts when a loss is awaited for the first time. The
//! callbacks' thread would not do, as a callback may block for long. The thread calls no clock, so
//! a clock's panic does not end it.
//!
//! A future ends with its guard, as the hold may be handed over afterwards. A `RedGuard` has no
//! future: its majority may outlive each of its clients, and so any client's thread.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::error::{Error, LostReason};
use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex};

/// The waker thread of one client, once started.
#[derive(Debug, Default)]
pub(crate) struct WakerThread {
    queue: Arc<WakeQueue>,
    thread: Mutex<Option<Thread>>,
}

/// The running thread `lock-wakers`, seen from other threads.
#[derive(Debug)]
struct Thread {
    id: ThreadId,
    /// Loses its sender when the thread ends.
    ended: Receiver<Infallible>,
}

/// The queue of ends whose tasks are to be woken, shared with the thread `lock-wakers`.
#[derive(Debug, Default)]
struct WakeQueue {
    state: Mutex<WakerQueue>,
    changed: Condvar,
    /// Panics of wakers.
    panics: AtomicU64,
}

/// The content of a [`WakeQueue`], behind its mutex.
#[derive(Debug, Default)]
struct WakerQueue {
    /// The resolved ends whose tasks are not woken yet, oldest first.
    due: VecDeque<Arc<AwaitedEnd>>,
    /// At this length of `due`, ends without an awaiting task are removed.
    prune_at: usize,
    is_stopping: bool,
}

/// The minimum length at which the queue is pruned.
const LEAST_PRUNED: usize = 64;

impl WakerThread {
    /// Makes an unresolved end for tasks to await. Starts the thread, unless already running.
    ///
    /// Returns [`Error::Thread`] if the thread cannot be started.
    pub(crate) fn awaited_end(&self) -> Result<Arc<AwaitedEnd>, Error> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            *thread = Some(spawn(&self.queue)?);
        }
        let state = EndState { end: Poll::Pending, wakers: Vec::new(), next_task: 0 };
        Ok(Arc::new(AwaitedEnd { queue: Arc::clone(&self.queue), state: Mutex::new(state) }))
    }

    /// Returns the number of panicked wakers.
    pub(crate) fn panics(&self) -> u64 {
        self.queue.panics.load(Ordering::Relaxed)
    }

    /// Ends the thread once the queued tasks are woken, and waits for the end of the thread for at
    /// most `timeout`. Does not wait on the waker thread itself. Further calls have no effect.
    pub(crate) fn stop(&self, timeout: Duration) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.queue.state.lock().is_stopping = true;
        self.queue.changed.notify_one();
        if thread::current().id() != thread.id {
            // Nothing is ever sent: `recv_timeout` returns when the sender is dropped, or at the
            // timeout.
            let _ended = thread.ended.recv_timeout(timeout);
        }
    }
}

/// Starts the thread `lock-wakers`, which wakes the tasks of `queue`. Returns [`Error::Thread`] if
/// the thread cannot be started.
fn spawn(queue: &Arc<WakeQueue>) -> Result<Thread, Error> {
    let (ends, ended) = bounded::<Infallible>(0);
    let queue = Arc::clone(queue);
    let thread = thread::Builder::new()
        .name("lock-wakers".to_owned())
        .spawn(move || {
            while let Some(end) = queue.next() {
                queue.wake(&end);
            }
            drop(ends);
        })
        .map_err(|error| Error::Thread { reason: error.into() })?;
    // The thread is not joined: a waker may never return.
    Ok(Thread { id: thread.thread().id(), ended })
}

impl WakeQueue {
    /// Queues a resolved end and wakes the thread. Before, removes ends without an awaiting task
    /// from a long queue.
    fn push(&self, end: &Arc<AwaitedEnd>) {
        let mut state = self.state.lock();
        if state.due.len() >= state.prune_at {
            // Tasks of the program await the remaining ends, so they bound the queue. Doubling
            // makes the cost of an end constant. No wake is ever dropped, as the task would sleep
            // on.
            state.due.retain(|end| end.is_awaited());
            state.prune_at = LEAST_PRUNED.max(state.due.len() * 2);
        }
        state.due.push_back(Arc::clone(end));
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next queued end. Returns `None` once the queue is empty and the thread must
    /// end.
    fn next(&self) -> Option<Arc<AwaitedEnd>> {
        let mut state = self.state.lock();
        loop {
            match state.due.pop_front() {
                Some(end) => return Some(end),
                None if state.is_stopping => return None,
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Takes the wakers of `end` and calls each with nothing locked. Catches and counts panics.
    fn wake(&self, end: &AwaitedEnd) {
        let wakers = mem::take(&mut end.state.lock().wakers);
        for (_, waker) in wakers {
            if catch_panic(|| waker.wake()).is_none() {
                self.panics.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The end of one guard's part in a hold, awaited by tasks: the reason of a loss, or none if the
/// guard is gone.
#[derive(Debug)]
pub(crate) struct AwaitedEnd {
    queue: Arc<WakeQueue>,
    state: Mutex<EndState>,
}

/// The state of an [`AwaitedEnd`], behind its mutex.
#[derive(Debug)]
struct EndState {
    /// Pending until resolved; then the reason of a loss, or `None` if the guard is gone.
    end: Poll<Option<LostReason>>,
    /// The wakers of the tasks, by number. A task that stops awaiting the end removes its waker, so
    /// no waker is left when this value is dropped.
    wakers: Vec<(u64, Waker)>,
    /// The number of the task that joined last.
    next_task: u64,
}

impl AwaitedEnd {
    /// Resolves the end to `lost`, and queues the wakers of awaiting tasks. Later calls do nothing.
    /// Never waits, and calls no waker.
    pub(crate) fn resolve(self: &Arc<Self>, lost: Option<LostReason>) {
        let mut state = self.state.lock();
        if state.end.is_ready() {
            return;
        }
        state.end = Poll::Ready(lost);
        let is_awaited = !state.wakers.is_empty();
        drop(state);
        if is_awaited {
            self.queue.push(self);
        }
    }

    /// Registers one more task and returns its number.
    pub(crate) fn join(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_task += 1;
        state.next_task
    }

    /// Returns the end if resolved. Otherwise stores `waker` in place of the task's earlier waker,
    /// to be woken when the end is resolved.
    pub(crate) fn poll(&self, task: u64, waker: &Waker) -> Poll<Option<LostReason>> {
        // Cloned and dropped with nothing locked: both call foreign code.
        let mut waker = waker.clone();
        let mut state = self.state.lock();
        if state.end.is_ready() {
            return state.end;
        }
        if let Some((_, known)) = state.wakers.iter_mut().find(|(other, _)| *other == task) {
            mem::swap(known, &mut waker);
            drop(state);
            drop(waker);
        } else {
            state.wakers.push((task, waker));
        }
        Poll::Pending
    }

    /// Removes the waker of a task that no longer awaits the end.
    pub(crate) fn leave(&self, task: u64) {
        let mut state = self.state.lock();
        let index = state.wakers.iter().position(|(other, _)| *other == task);
        let left = index.map(|index| state.wakers.swap_remove(index));
        drop(state);
        // With nothing locked.
        drop(left);
    }

    /// Returns whether any task is to be woken by this end.
    fn is_awaited(&self) -> bool {
        !self.state.lock().wakers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A task that counts how often it is woken, and first waits until it may.
    struct Task {
        woken: AtomicUsize,
        called: crossbeam_channel::Sender<()>,
        may: Receiver<()>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::SeqCst);
            self.called.send(()).unwrap();
            let _ended = self.may.recv();
        }
    }

    #[test]
    fn while_a_waker_blocks_the_queue_keeps_only_what_is_awaited() {
        let wakers = WakerThread::default();
        let (called, calls) = bounded(1000);
        let (go_on, may) = bounded::<()>(0);
        let task = Arc::new(Task { woken: AtomicUsize::new(0), called, may });
        let waker = Waker::from(Arc::clone(&task));
        let awaited = || {
            let end = wakers.awaited_end().unwrap();
            let number = end.join();
            assert!(end.poll(number, &waker).is_pending());
            (end, number)
        };
        let (blocking, _) = awaited();
        blocking.resolve(Some(LostReason::Expired));
        calls.recv_timeout(LIMIT).unwrap();
        let kept: Vec<_> = (0..100).map(|_| awaited()).collect();
        for (end, _) in &kept {
            end.resolve(None);
        }
        for _ in 0..10_000 {
            let (end, number) = awaited();
            end.resolve(Some(LostReason::Deleted));
            end.leave(number);
        }
        assert!(wakers.queue.state.lock().due.len() <= 4 * kept.len());
        drop(go_on);
        for _ in &kept {
            calls.recv_timeout(LIMIT).unwrap();
        }
        wakers.stop(LIMIT);
        assert_eq!(task.woken.load(Ordering::SeqCst), 1 + kept.len());
        drop((blocking, kept, waker));
        assert_eq!(Arc::strong_count(&task), 1, "no waker is left");
    }

    #[test]
    fn only_the_first_end_counts() {
        let end = WakerThread::default().awaited_end().unwrap();
        end.resolve(Some(LostReason::Expired));
        end.resolve(None);
        assert_eq!(end.poll(1, Waker::noop()), Poll::Ready(Some(LostReason::Expired)));
    }
}
