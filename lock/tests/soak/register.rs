//! What the locks protect: sixteen numbers that refuse old tokens, and the history of accepted
//! writes.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use crate::servers::LOCKS;

/// The numbers, and what became of each thread that came here.
#[derive(Debug)]
pub(crate) struct Register {
    cells: Vec<Cell>,
    pub(crate) threads: BTreeMap<String, Traces>,
    /// The first few violations, as the finder described them.
    pub(crate) complaints: Vec<String>,
}

/// One number. The largest token that was seen belongs to `holder`.
#[derive(Debug, Default)]
struct Cell {
    value: u64,
    token: u64,
    holder: String,
    written: Vec<Written>,
}

/// A write that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) token: u64,
    /// A hash of the hold's name: there may be a million of them.
    pub(crate) holder: u64,
    /// What the writer had read.
    pub(crate) old: u64,
    pub(crate) new: u64,
}

/// What is known of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traces {
    last_sign: Instant,
    last_entry: Instant,
    pub(crate) longest_silence: Duration,
    pub(crate) longest_outside: Duration,
    pub(crate) entered: u64,
    pub(crate) written: u64,
    pub(crate) refused: u64,
    pub(crate) in_vain: u64,
}

/// An answer to a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Value(u64),
    /// Somebody with a larger token has been here.
    Stale,
}

impl Register {
    pub(crate) fn new() -> Self {
        let cells = (0..LOCKS).map(|_| Cell::default()).collect();
        Self { cells, threads: BTreeMap::new(), complaints: Vec::new() }
    }

    /// A read counts as a use of the token: what was read must not be changed afterwards by an
    /// older holder.
    pub(crate) fn read(&mut self, lock: usize, token: u64, holder: &str) -> Answer {
        let cell = &mut self.cells[lock];
        if cell.admits(token, holder) { Answer::Value(cell.value) } else { Answer::Stale }
    }

    /// Writes whatever the holder says. Whether it knew what it was doing is seen at the end.
    pub(crate) fn write(
        &mut self,
        lock: usize,
        token: u64,
        holder: &str,
        old: u64,
        new: u64,
    ) -> Answer {
        let cell = &mut self.cells[lock];
        if !cell.admits(token, holder) {
            return Answer::Stale;
        }
        cell.value = new;
        cell.written.push(Written { token, holder: hash(holder), old, new });
        Answer::Value(new)
    }

    /// A thread is alive.
    pub(crate) fn sign(&mut self, thread: &str, now: Instant) -> &mut Traces {
        if !self.threads.contains_key(thread) {
            self.threads.insert(thread.to_owned(), Traces::new(now));
        }
        let Some(traces) = self.threads.get_mut(thread) else { unreachable!() };
        traces.longest_silence = traces.longest_silence.max(now.duration_since(traces.last_sign));
        traces.last_sign = now;
        traces
    }

    pub(crate) fn complain(&mut self, complaint: String) {
        if self.complaints.len() < MOST_COMPLAINTS {
            self.complaints.push(complaint);
        }
    }

    pub(crate) fn written(&self) -> impl Iterator<Item = &[Written]> {
        self.cells.iter().map(|cell| cell.written.as_slice())
    }
}

impl Cell {
    fn admits(&mut self, token: u64, holder: &str) -> bool {
        if token > self.token {
            self.token = token;
            holder.clone_into(&mut self.holder);
        }
        // A failover can give a token away twice.
        token == self.token && holder == self.holder
    }
}

impl Traces {
    fn new(now: Instant) -> Self {
        Self {
            last_sign: now,
            last_entry: now,
            longest_silence: Duration::ZERO,
            longest_outside: Duration::ZERO,
            entered: 0,
            written: 0,
            refused: 0,
            in_vain: 0,
        }
    }

    pub(crate) fn enter(&mut self, now: Instant) {
        self.entered += 1;
        self.longest_outside = self.longest_outside.max(now.duration_since(self.last_entry));
        self.last_entry = now;
    }

    pub(crate) fn entered_since(&self, moment: Instant) -> bool {
        self.entered > 0 && self.last_entry > moment
    }

    /// The longest times without a sign and without a lock. Given an end, what had not ended by
    /// then counts too.
    pub(crate) fn silence_and_outside(&self, end: Option<Instant>) -> (Duration, Duration) {
        let since = |last| end.map_or(Duration::ZERO, |end| end.saturating_duration_since(last));
        (
            self.longest_silence.max(since(self.last_sign)),
            self.longest_outside.max(since(self.last_entry)),
        )
    }
}

pub(crate) fn hash(holder: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    holder.hash(&mut hasher);
    hasher.finish()
}

const MOST_COMPLAINTS: usize = 20;

#[test]
fn an_old_token_is_refused_after_a_larger_one_has_read() {
    let mut register = Register::new();
    assert_eq!(register.read(0, 5, "a"), Answer::Value(0));
    assert_eq!(register.write(0, 5, "a", 0, 1), Answer::Value(1));
    assert_eq!(register.read(0, 6, "b"), Answer::Value(1));
    assert_eq!(register.write(0, 5, "a", 1, 2), Answer::Stale);
    assert_eq!(register.read(1, 5, "a"), Answer::Value(0));
}

#[test]
fn an_equal_token_is_refused_unless_it_is_the_same_holds() {
    let mut register = Register::new();
    assert_eq!(register.read(0, 5, "a"), Answer::Value(0));
    assert_eq!(register.read(0, 5, "b"), Answer::Stale);
    assert_eq!(register.write(0, 5, "b", 0, 1), Answer::Stale);
    assert_eq!(register.write(0, 5, "a", 0, 1), Answer::Value(1));
    assert_eq!(register.write(0, 5, "a", 1, 2), Answer::Value(2));
}
