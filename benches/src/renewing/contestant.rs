//! Who keeps how many locks.

/// Somebody who renews what is held, and how much is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) keeper: Who,
    pub(crate) held: usize,
}

/// The keepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// This crate's client, with its watchdog.
    Wheellock,
    /// The same holds, with a lease so long that nobody renews them.
    Unrenewed,
    /// A thread for each lock.
    Rlock,
    /// A boxed timeout and a script for each lock, as Redisson had it before 3.44.
    TimerTasks,
    /// A task and a script for each lock.
    TokioTasks,
    /// Redisson itself.
    Redisson,
    /// The same scripts from a bare socket.
    Floor,
}

impl Who {
    const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Wheellock, "wheellock", "wheellock"),
        (Self::Unrenewed, "unrenewed", "nobody renews"),
        (Self::Rlock, "rlock", "rlock 0.2, a thread each"),
        (Self::TimerTasks, "timer-tasks", "a boxed timeout each"),
        (Self::TokioTasks, "tokio-tasks", "tokio, a task each"),
        (Self::Redisson, "redisson", "Redisson 3.52"),
        (Self::Floor, "floor", "bare socket"),
    ];

    /// What it is called between the report and the process that measures.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(who, ..)| *who == self).map_or("", |(_, word, _)| word)
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own, _)| *own == word).map(|(who, ..)| *who)
    }

    /// What it is called in tables.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(who, ..)| *who == self).map_or("", |(_, _, name)| name)
    }

    pub(crate) fn is_ours(self) -> bool {
        self == Self::Wheellock
    }

    /// More than so many it is not given: a system has only so many threads.
    pub(crate) fn most(self) -> usize {
        if self == Self::Rlock { 1000 } else { usize::MAX }
    }
}
