//! The plan of faults, which follows from the seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::servers::{Kind, LOCKS, PROCESSES, locks_of};
use crate::times::{LEASE, LONG_WORK, SLACK, TIMEOUT, WAIT};

/// Whose disruptions they are. The disruptions of one come one after the other, those of several at
/// the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Track {
    Servers(Kind),
    Processes,
}

/// What can happen. Most of it lasts for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disruption {
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

impl Disruption {
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

/// A disruption, when it begins and how long it lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) disruption: Disruption,
}

/// All that will happen.
pub(crate) struct FaultPlan {
    seed: u64,
    pub(crate) tracks: Vec<(Track, Vec<Step>)>,
}

impl FaultPlan {
    pub(crate) fn new(seed: u64, length: Duration, servers: &[Kind]) -> Self {
        let tracks = servers.iter().map(|kind| Track::Servers(*kind)).chain([Track::Processes]);
        let tracks = tracks
            .zip(0..)
            .map(|(track, number)| (track, steps(track, rng_of(seed, number), length)))
            .collect();
        Self { seed, tracks }
    }

    /// How long a thread may be silent: it waits for a lock, works under it, and is stopped
    /// meanwhile. A call ends one command timeout after its deadline at the latest, and so does the
    /// release that may follow it.
    pub(crate) fn longest_silence(&self) -> Duration {
        self.longest_stop() + WAIT + 2 * TIMEOUT + LONG_WORK + SLACK
    }

    /// How long a thread may get no lock at all, whatever it tries: a whole disruption, the lease
    /// of whoever died or was stopped in it, and some tries without success, as others want the
    /// same.
    pub(crate) fn longest_outside(&self) -> Duration {
        let longest = self.steps().map(|step| step.lasts).max().unwrap_or_default();
        self.longest_stop() + longest + LEASE + TRIES_IN_VAIN * (WAIT + 2 * TIMEOUT) + SLACK
    }

    fn longest_stop(&self) -> Duration {
        let stops = self.steps().filter(|step| matches!(step.disruption, Disruption::Stop(_)));
        stops.map(|step| step.lasts).max().unwrap_or_default()
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.tracks.iter().flat_map(|(_, steps)| steps)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "the plan of seed {}, in milliseconds:", self.seed)?;
        for (track, steps) in &self.tracks {
            write!(formatter, "{track:?}:")?;
            for Step { at, lasts, disruption } in steps {
                write!(formatter, " {} {disruption:?}", at.as_millis())?;
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

/// The disruptions of a track until the end, each kind once before any comes again.
fn steps(track: Track, mut rng: Rng, length: Duration) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = Duration::ZERO;
    let mut deck = Vec::new();
    loop {
        let (from, to) = quiet_before(track);
        at += millis(&mut rng, from, to);
        if deck.is_empty() {
            deck = all_of(track, &mut rng);
            rng.shuffle(&mut deck);
        }
        let Some(disruption) = deck.pop() else { return steps };
        let (from, to) = disruption.length();
        let lasts = millis(&mut rng, from, to);
        if at + lasts > length {
            return steps;
        }
        steps.push(Step { at, lasts, disruption });
        at += lasts;
    }
}

/// The random numbers of one part of a plan.
pub(crate) fn rng_of(seed: u64, part: u64) -> Rng {
    Rng::with_seed(seed ^ part.wrapping_add(1).wrapping_mul(0xD1B5_4A32_D192_ED03))
}

pub(crate) fn millis(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..to))
}

/// How long it is quiet between two disruptions, in milliseconds. After a failover the servers need
/// a while to find each other again.
const fn quiet_before(track: Track) -> (u64, u64) {
    match track {
        Track::Servers(Kind::Single) => (100, 1200),
        Track::Servers(Kind::Sentinel) => (1500, 4000),
        Track::Servers(Kind::Cluster) => (500, 3000),
        Track::Processes => (500, 2500),
    }
}

fn all_of(track: Track, rng: &mut Rng) -> Vec<Disruption> {
    match track {
        Track::Servers(Kind::Single) => vec![
            Disruption::DelayRequests,
            Disruption::DelayReplies,
            Disruption::HoldAll,
            Disruption::Refuse,
            Disruption::HangNewConnections,
            Disruption::LoseMessages,
            Disruption::CutAll,
            Disruption::ResetAll,
            Disruption::DropRequests,
            Disruption::LoseReplies,
            Disruption::CutReplies,
            Disruption::LateCopies,
            Disruption::ForgetScripts,
            Disruption::PauseServer,
        ],
        Track::Servers(Kind::Sentinel) => vec![
            Disruption::FailOver,
            Disruption::PauseMaster,
            Disruption::PauseReplica,
            Disruption::PauseSentinel,
        ],
        Track::Servers(Kind::Cluster) => {
            let locks = locks_of(Kind::Cluster);
            let mut any =
                || locks.get(rng.usize(..locks.len().max(1))).copied().unwrap_or(LOCKS - 1);
            vec![
                Disruption::MoveSlot(any()),
                Disruption::MoveSlot(any()),
                Disruption::StayHalfMoved(any()),
                Disruption::HandOver(any()),
                Disruption::PauseNode(any()),
            ]
        }
        Track::Processes => (0..PROCESSES)
            .flat_map(|number| [Disruption::Stop(number), Disruption::Kill(number)])
            .collect(),
    }
}

/// This many failed tries in a row are not chance: in each, all sixteen locks, or the setup of a
/// third of them, are out of reach.
const TRIES_IN_VAIN: u32 = 4;

#[test]
fn a_seed_gives_the_same_plan_again() {
    let length = Duration::from_secs(60);
    let all = [Kind::Single, Kind::Sentinel, Kind::Cluster];
    let text = |seed| FaultPlan::new(seed, length, &all).to_string();
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
        let plan = FaultPlan::new(seed, Duration::from_secs(60), &all);
        for (track, steps) in &plan.tracks {
            for disruption in all_of(*track, &mut Rng::with_seed(seed)) {
                let is_it = |step: &Step| {
                    std::mem::discriminant(&step.disruption) == std::mem::discriminant(&disruption)
                };
                assert!(steps.iter().any(is_it), "seed {seed}: no {disruption:?}");
            }
        }
    }
}
