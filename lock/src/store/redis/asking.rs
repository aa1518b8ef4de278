//! A question that may never be answered: name resolution, say, or foreign code. It is put on a thread of its own, so
//! that whoever asks has a deadline.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hashed_wheel::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

/// One question, about one thing or, later, another. At most one thread runs for it at a time: an answer that does not
/// come is waited for, not asked for again. All who ask while it runs share its answer, and nobody who asks later.
pub(super) struct Asking<T> {
    latest: Mutex<Option<Arc<Asked<T>>>>,
}

struct Asked<T> {
    about: String,
    answer: Mutex<Option<Answer<T>>>,
    answered: Condvar,
}

/// The answer, or why there is none.
pub(super) type Answer<T> = Result<T, String>;

impl<T: Clone + Send + 'static> Asking<T> {
    pub(super) fn new() -> Self {
        Self { latest: Mutex::new(None) }
    }

    /// What `question` about something answers on the thread `name`. An error if it fails, panics, or does not end
    /// within `timeout`: then `late` is the reason.
    pub(super) fn ask(
        &self,
        name: &str,
        about: &str,
        question: impl FnOnce() -> Answer<T> + Send + 'static,
        timeout: Duration,
        late: &str,
    ) -> io::Result<T> {
        let asked = {
            let mut latest = self.latest.lock();
            match &*latest {
                Some(running) if running.about == about && running.answer.lock().is_none() => {
                    Arc::clone(running)
                }
                _ => Arc::clone(latest.insert(start(name, about, question)?)),
            }
        };
        asked.wait(timeout, late)
    }
}

impl<T: Clone> Asked<T> {
    fn wait(&self, timeout: Duration, late: &str) -> io::Result<T> {
        let deadline = SystemClock.now() + timeout;
        let mut answer = self.answer.lock();
        loop {
            match &*answer {
                Some(Ok(value)) => return Ok(value.clone()),
                Some(Err(reason)) => return Err(io::Error::other(reason.clone())),
                None => {}
            }
            let left = deadline.saturating_duration_since(SystemClock.now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            self.answered.wait_for(&mut answer, left);
        }
    }
}

fn start<T: Send + 'static>(
    name: &str,
    about: &str,
    question: impl FnOnce() -> Answer<T> + Send + 'static,
) -> io::Result<Arc<Asked<T>>> {
    let (answer, answered) = (Mutex::new(None), Condvar::new());
    let asked = Arc::new(Asked { about: about.to_owned(), answer, answered });
    let running = Arc::clone(&asked);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The message of a panic may say anything, so it is not passed on.
        let answer = catch_unwind(AssertUnwindSafe(question))
            .unwrap_or_else(|_| Err("it panicked".to_owned()));
        *running.answer.lock() = Some(answer);
        running.answered.notify_all();
    })?;
    Ok(asked)
}

/// Not the answer: it may be a secret.
impl<T> fmt::Debug for Asking<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Asking").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_about_something_else_does_not_wait_for_the_answer_that_does_not_come() {
        let asking = Asking::new();
        let (end, never) = crossbeam_channel::bounded::<()>(0);
        let ask = |about: &'static str, timeout| {
            let never = never.clone();
            let question = move || {
                if about == "hangs" {
                    // Until the other end is dropped.
                    never.recv().ok();
                }
                Ok(about)
            };
            asking.ask("asked", about, question, timeout, "late")
        };
        let briefly = Duration::from_millis(10);
        assert_eq!(ask("hangs", briefly).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(ask("answers", Duration::from_secs(20)).unwrap(), "answers");
        drop(end);
    }
}
