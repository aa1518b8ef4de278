//! The subjects: what holds locks and renews them.

use crate::harness::figures::Subject;

/// The holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderKind {
    /// This crate's client, with its watchdog.
    Wheellock,
    /// This crate's client, with a lease so long that nothing is renewed.
    Unrenewed,
    /// A thread for each lock.
    Rlock,
    /// A boxed timeout and a script for each lock, as in Redisson before 3.44.
    TimerTasks,
    /// A task and a script for each lock.
    TokioTasks,
    /// Redisson itself.
    Redisson,
    /// The renewal script of this crate's client, sent on a plain socket.
    Floor,
}

impl HolderKind {
    const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Wheellock, "wheellock", "wheellock"),
        (Self::Unrenewed, "unrenewed", "no renewals"),
        (Self::Rlock, "rlock", "rlock 0.2, a thread each"),
        (Self::TimerTasks, "timer-tasks", "a boxed timeout each"),
        (Self::TokioTasks, "tokio-tasks", "tokio, a task each"),
        (Self::Redisson, "redisson", "Redisson 4.7"),
        (Self::Floor, "floor", "bare socket"),
    ];

    /// What the report and the measuring process call it.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, word, _)| word)
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own, _)| *own == word).map(|(kind, ..)| *kind)
    }

    /// The most locks that it is measured with: a system has a limited number of threads.
    pub(crate) fn most(self) -> usize {
        if self == Self::Rlock { 1000 } else { usize::MAX }
    }
}

impl Subject for HolderKind {
    fn name(self) -> String {
        let name = Self::ALL.iter().find(|(kind, ..)| *kind == self);
        name.map_or("", |(_, _, name)| name).to_owned()
    }

    fn is_ours(self) -> bool {
        self == Self::Wheellock
    }
}
