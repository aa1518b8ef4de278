//! Operations that follow each other on one connection, several of them under way at a time.

use std::time::Duration;

use super::failure::Failure;
use crate::op::Operation;

/// Who has many operations to be sent, and takes their answers.
pub(crate) trait Stream {
    type Operation: Operation;
    /// What belongs to an operation and comes back with its answer.
    type Note;

    /// How many may be under way at a time, from now on.
    fn at_once(&self) -> usize;

    /// With how many still under way more are sent. Half of them unless said otherwise: one call sends many, and the
    /// server does not run dry meanwhile.
    fn refill_at(&self) -> usize {
        self.at_once() / 2
    }

    /// The next to be sent, if there is one for now. It is asked again after answers.
    fn next(&mut self) -> Option<Request<Self::Operation, Self::Note>>;

    /// An answer has come, or never will. After a failure of the connection nothing more is asked for.
    fn answered(
        &mut self,
        note: Self::Note,
        answer: Result<<Self::Operation as Operation>::Reply, Failure>,
    );

    /// The same, of what was sent on to another server than the lane's.
    fn answered_elsewhere(
        &mut self,
        note: Self::Note,
        answer: Result<<Self::Operation as Operation>::Reply, Failure>,
    ) {
        self.answered(note, answer);
    }
}

/// One server, as far as streams are concerned: each has a connection for them, and one that hangs delays no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Lane(pub(crate) u32);

/// Keys that one script may touch together have the same part: a slot of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part(pub(crate) u16);

impl Lane {
    /// The only one, where there is one server.
    pub(crate) const ONLY: Self = Self(0);
}

impl Part {
    /// The only one, where there is one server.
    pub(crate) const ONLY: Self = Self(0);
}

/// One operation to be sent.
pub(crate) struct Request<O, N> {
    pub(crate) operation: O,
    pub(crate) note: N,
    /// How long its answer may take.
    pub(crate) timeout: Duration,
}
