//! The schedule of faults, which follows from the seed.

use std::fmt;
use std::time::Duration;

use crate::dice::Dice;
use crate::times::{DAWDLING, LEASE, SLACK, TIMEOUT, WAIT};
use crate::worlds::{Kind, LOCKS, PROCESSES, locks_of};

/// Whose troubles they are. The troubles of one come one after the other, those of several at the
/// same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Track {
    World(Kind),
    Processes,
}

/// What can happen. Most of it lasts for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    // What the proxy before the single server does.
    DelayRequests,
    DelayReplies,
    HoldAll,
    Refuse,
    HangNewConnections,
    LoseMessages,
    CutAll,
    ResetAll,
    DropRequests,
    LoseReplies,
    CutReplies,
    LateCopies,
    // What happens to the single server.
    ForgetScripts,
    PauseServer,
    // With sentinels.
    FailOver,
    PauseMaster,
    PauseReplica,
    PauseSentinel,
    // In the cluster, to the node of this lock.
    MoveSlot(usize),
    StayHalfMoved(usize),
    HandOver(usize),
    PauseNode(usize),
    // To a process with clients.
    Stop(usize),
    Kill(usize),
}

impl Trouble {
    /// From when to when it may last, in milliseconds.
    const fn length(self) -> (u64, u64) {
        match self {
            // At times longer than a lease: then locks are lost.
            Self::PauseServer | Self::PauseMaster | Self::PauseNode(_) | Self::Stop(_) => {
                (100, 3500)
            }
            Self::HoldAll | Self::Refuse | Self::HangNewConnections => (50, 900),
            Self::PauseReplica | Self::PauseSentinel => (200, 3000),
            Self::StayHalfMoved(_) => (200, 1500),
            Self::DelayRequests | Self::DelayReplies | Self::LoseMessages => (100, 2000),
            Self::DropRequests | Self::LoseReplies | Self::CutReplies | Self::LateCopies => {
                (100, 800)
            }
            Self::CutAll
            | Self::ResetAll
            | Self::ForgetScripts
            | Self::FailOver
            | Self::MoveSlot(_)
            | Self::HandOver(_)
            | Self::Kill(_) => (0, 1),
        }
    }
}

/// A trouble, when it begins and how long it lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) trouble: Trouble,
}

/// All that will happen.
pub(crate) struct Schedule {
    seed: u64,
    pub(crate) tracks: Vec<(Track, Vec<Step>)>,
}

impl Schedule {
    pub(crate) fn new(seed: u64, length: Duration, worlds: &[Kind]) -> Self {
        let tracks = worlds.iter().map(|kind| Track::World(*kind)).chain([Track::Processes]);
        let tracks = tracks
            .zip(0..)
            .map(|(track, number)| (track, steps(track, Dice::row(seed, number), length)))
            .collect();
        Self { seed, tracks }
    }

    /// How long a thread may be silent: it waits for a lock, works under it, and is stopped
    /// meanwhile. A call ends one command timeout after its deadline at the latest, and so does the
    /// release that may follow it.
    pub(crate) fn longest_silence(&self) -> Duration {
        self.longest_stop() + WAIT + 2 * TIMEOUT + DAWDLING + SLACK
    }

    /// How long a thread may get no lock at all, whatever it tries: a whole trouble, the lease of
    /// whoever died or was stopped in it, and some tries without success, as others want the same.
    pub(crate) fn longest_outside(&self) -> Duration {
        let longest = self.steps().map(|step| step.lasts).max().unwrap_or_default();
        self.longest_stop() + longest + LEASE + TRIES_IN_VAIN * (WAIT + 2 * TIMEOUT) + SLACK
    }

    fn longest_stop(&self) -> Duration {
        let stops = self.steps().filter(|step| matches!(step.trouble, Trouble::Stop(_)));
        stops.map(|step| step.lasts).max().unwrap_or_default()
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.tracks.iter().flat_map(|(_, steps)| steps)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "the schedule of seed {}, in milliseconds:", self.seed)?;
        for (track, steps) in &self.tracks {
            write!(formatter, "{track:?}:")?;
            for Step { at, lasts, trouble } in steps {
                write!(formatter, " {} {trouble:?}", at.as_millis())?;
                if *lasts > Duration::from_millis(1) {
                    write!(formatter, " for {}", lasts.as_millis())?;
                }
                formatter.write_str(",")?;
            }
            writeln!(formatter)?;
        }
        Ok(())
    }
}

/// The troubles of a track until the end, each kind once before any comes again.
fn steps(track: Track, mut dice: Dice, length: Duration) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = Duration::ZERO;
    let mut deck = Vec::new();
    loop {
        let (from, to) = quiet_before(track);
        at += dice.millis(from, to);
        if deck.is_empty() {
            deck = all_of(track, &mut dice);
            dice.shuffle(&mut deck);
        }
        let Some(trouble) = deck.pop() else { return steps };
        let (from, to) = trouble.length();
        let lasts = dice.millis(from, to);
        if at + lasts > length {
            return steps;
        }
        steps.push(Step { at, lasts, trouble });
        at += lasts;
    }
}

/// How long it is quiet between two troubles, in milliseconds. After a failover the servers need a
/// while to find each other again.
const fn quiet_before(track: Track) -> (u64, u64) {
    match track {
        Track::World(Kind::Single) => (100, 1200),
        Track::World(Kind::Sentinel) => (1500, 4000),
        Track::World(Kind::Cluster) => (500, 3000),
        Track::Processes => (500, 2500),
    }
}

fn all_of(track: Track, dice: &mut Dice) -> Vec<Trouble> {
    match track {
        Track::World(Kind::Single) => vec![
            Trouble::DelayRequests,
            Trouble::DelayReplies,
            Trouble::HoldAll,
            Trouble::Refuse,
            Trouble::HangNewConnections,
            Trouble::LoseMessages,
            Trouble::CutAll,
            Trouble::ResetAll,
            Trouble::DropRequests,
            Trouble::LoseReplies,
            Trouble::CutReplies,
            Trouble::LateCopies,
            Trouble::ForgetScripts,
            Trouble::PauseServer,
        ],
        Track::World(Kind::Sentinel) => vec![
            Trouble::FailOver,
            Trouble::PauseMaster,
            Trouble::PauseReplica,
            Trouble::PauseSentinel,
        ],
        Track::World(Kind::Cluster) => {
            let locks = locks_of(Kind::Cluster);
            let mut any = || locks.get(dice.pick(locks.len().max(1))).copied().unwrap_or(LOCKS - 1);
            vec![
                Trouble::MoveSlot(any()),
                Trouble::MoveSlot(any()),
                Trouble::StayHalfMoved(any()),
                Trouble::HandOver(any()),
                Trouble::PauseNode(any()),
            ]
        }
        Track::Processes => (0..PROCESSES)
            .flat_map(|number| [Trouble::Stop(number), Trouble::Kill(number)])
            .collect(),
    }
}

/// That all sixteen locks, or the world of a third of them, are out of reach for so many tries in a
/// row is not chance.
const TRIES_IN_VAIN: u32 = 4;

#[test]
fn a_seed_gives_the_same_schedule_again() {
    let length = Duration::from_secs(60);
    let all = [Kind::Single, Kind::Sentinel, Kind::Cluster];
    let text = |seed| Schedule::new(seed, length, &all).to_string();
    assert_eq!(text(1), text(1));
    assert_ne!(
        text(1).lines().skip(1).collect::<String>(),
        text(2).lines().skip(1).collect::<String>()
    );
}

#[test]
fn in_a_minute_everything_happens() {
    let all = [Kind::Single, Kind::Sentinel, Kind::Cluster];
    for seed in 0..50 {
        let schedule = Schedule::new(seed, Duration::from_secs(60), &all);
        for (track, steps) in &schedule.tracks {
            for trouble in all_of(*track, &mut Dice::new(seed)) {
                let is_it = |step: &Step| {
                    std::mem::discriminant(&step.trouble) == std::mem::discriminant(&trouble)
                };
                assert!(steps.iter().any(is_it), "seed {seed}: no {trouble:?}");
            }
        }
    }
}
