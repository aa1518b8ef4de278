//! Ten thousand holds of one client, the state of each, and another client's locks beside them.
//!
//! The fleet checks its holds repeatedly: a hold that was reported lost is not valid, a hold that
//! is not valid was reported lost once, and a hold that was not valid never becomes valid again.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use wheellock::{Client, ClientBuilder, Error, LockGuard, LostReason, ManualClock};
use wheellock_fixture::{RawConnection, Server, wait_until};

use super::{built, now, pause};

/// How many locks the client holds.
pub(crate) const MANY: usize = 10_000;

/// How many locks the other client holds.
pub(crate) const FEW: usize = 100;

/// For whatever ten thousand holds take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Between two looks at ten thousand holds. To look all the time would take the processor from
/// those looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// The lease of another client: longer than any test, and never renewed.
const LONG: Duration = Duration::from_secs(600);

/// The name of a lock of the fleet.
pub(crate) fn name(number: usize) -> String {
    format!("survival:{number:05}")
}

/// The names of locks that the fleet never takes.
pub(crate) fn other_names() -> Vec<String> {
    (0..FEW).map(|number| format!("stranger:{number:05}")).collect()
}

/// The names of some of the fleet's locks, from all over it.
pub(crate) fn some_names() -> Vec<String> {
    (0..FEW).map(|number| name(number * (MANY / FEW))).collect()
}

/// What the client's clock is.
#[derive(Clone)]
pub(crate) enum Time {
    Real,
    Manual(ManualClock),
}

impl Time {
    /// Does something that may have to wait on the client's clock, which goes on meanwhile.
    pub(crate) fn flies_while<T>(&self, action: impl FnOnce() -> T) -> T {
        let Self::Manual(clock) = self else { return action() };
        let (alive, over) = bounded::<()>(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                // A panic of the action ends it too: the sender is dropped either way.
                while over.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout)
                {
                    clock.advance(Duration::from_millis(10));
                }
            });
            let _alive = alive;
            action()
        })
    }

    /// Waits for something that the client does in its own time.
    pub(crate) fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_until(what, LIMIT, || {
            if let Self::Manual(clock) = self {
                clock.advance(Duration::from_millis(100));
            }
            condition()
        });
    }
}

/// Ten thousand holds of one client, on the thread that took them.
pub(crate) struct Fleet {
    pub(crate) client: Client,
    time: Time,
    guards: Vec<LockGuard>,
    told: Vec<Receiver<LostReason>>,
    seen: Vec<Seen>,
    /// The longest delay between the end of a hold and its report, as seen by repeated checks.
    pub(crate) told_late: Duration,
}

/// What is known of one hold.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// Until when it is valid, by the last check that found it held. On the real clock.
    pub(crate) ends: Instant,
    /// It was not held when it was looked at.
    pub(crate) over: bool,
    /// What its channel said.
    pub(crate) reason: Option<LostReason>,
}

/// The result of one look at all holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Toll {
    pub(crate) held: usize,
    pub(crate) told: usize,
}

/// No hold was lost.
pub(crate) const UNHARMED: Toll = Toll { held: MANY, told: 0 };
/// Every hold is lost and reported.
pub(crate) const ALL_TOLD: Toll = Toll { held: 0, told: MANY };

impl Fleet {
    /// Takes the locks on the real clock, the second half of them half an interval later: its
    /// renewals come between those of the first half.
    pub(crate) fn take(builder: ClientBuilder) -> Self {
        Self::with(built(builder), Time::Real, |last| {
            let fresh = last.remaining();
            wait_until("half of the interval is over", LIMIT, || last.remaining() < fresh * 5 / 6);
        })
    }

    /// Takes the locks with the client on a clock of its own. The server's is the real one.
    pub(crate) fn take_on_manual_clock(builder: ClientBuilder) -> (Self, ManualClock) {
        Self::take_in_halves_on_manual_clock(builder, Duration::ZERO)
    }

    /// The same, and the second half `apart` later than the first.
    pub(crate) fn take_in_halves_on_manual_clock(
        builder: ClientBuilder,
        apart: Duration,
    ) -> (Self, ManualClock) {
        let clock = ManualClock::new();
        let client = built(builder.clock(Arc::new(clock.clone())));
        let time = Time::Manual(clock.clone());
        (Self::with(client, time, |_| clock.advance(apart)), clock)
    }

    fn with(client: Client, time: Time, between_halves: impl FnOnce(&LockGuard)) -> Self {
        let take = |number| match client.lock(&name(number)).lock() {
            Ok(guard) => guard,
            Err(error) => panic!("the lock {number} is not granted: {error}"),
        };
        let mut guards: Vec<_> = (0..MANY / 2).map(take).collect();
        if let Some(last) = guards.last() {
            between_halves(last);
        }
        guards.extend((MANY / 2..MANY).map(take));
        let told = guards.iter().map(|guard| guard.lost().clone()).collect();
        let nothing = Seen { ends: now(), over: false, reason: None };
        let seen = vec![nothing; MANY];
        let mut fleet = Self { client, time, guards, told, seen, told_late: Duration::ZERO };
        assert_eq!(fleet.look(), UNHARMED);
        fleet
    }

    /// Looks at every hold, and finds no rule broken.
    pub(crate) fn look(&mut self) -> Toll {
        let mut toll = Toll { held: 0, told: 0 };
        for ((guard, told), seen) in self.guards.iter().zip(&self.told).zip(&mut self.seen) {
            // In this order: a hold reported before is not valid afterwards.
            while let Ok(reason) = told.try_recv() {
                assert_eq!(seen.reason, None, "{} is told again: {reason}", guard.name());
                seen.reason = Some(reason);
                if let (Time::Real, false) = (&self.time, is_the_servers_word(reason)) {
                    let at = now();
                    assert!(at >= seen.ends, "{} was given up before its end", guard.name());
                    self.told_late = self.told_late.max(at.saturating_duration_since(seen.ends));
                }
            }
            let at = now();
            let left = guard.remaining();
            let held = guard.is_held();
            assert!(!held || seen.reason.is_none(), "{} believes what is lost", guard.name());
            assert!(!held || !seen.over, "{} believes again", guard.name());
            seen.over |= !held;
            if !left.is_zero() {
                seen.ends = seen.ends.max(at + left);
            }
            toll.held += usize::from(held);
            toll.told += usize::from(seen.reason.is_some());
        }
        toll
    }

    /// Looks again and again until all is as it should be, and answers the last look.
    pub(crate) fn look_until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&Self, Toll) -> bool,
    ) -> Toll {
        let end = now() + LIMIT;
        loop {
            let late = now() >= end;
            let toll = self.look();
            if condition(self, toll) {
                return toll;
            }
            assert!(!late, "timed out after {LIMIT:?} waiting until {what}: {toll:?}");
            pause(BETWEEN_LOOKS);
        }
    }

    /// What is known of each hold, from the last look.
    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// How many holds were lost for each reason.
    pub(crate) fn reasons(&self) -> HashMap<LostReason, usize> {
        let mut reasons = HashMap::new();
        for reason in self.seen.iter().filter_map(|seen| seen.reason) {
            *reasons.entry(reason).or_default() += 1;
        }
        reasons
    }

    /// Asserts that every hold that is not reported lost was renewed recently enough to have at
    /// least `left` left.
    pub(crate) fn assert_all_held_have(&self, left: Duration) {
        let mut kept = self.guards.iter().zip(&self.seen).filter(|(_, seen)| seen.reason.is_none());
        assert!(kept.all(|(guard, _)| guard.remaining() >= left), "holds have less than {left:?}");
    }

    /// Asserts that no hold is valid that the server does not keep. No renewal brings a key back,
    /// so a hold without a key at one moment must not be valid at any later one. Not for a server
    /// that loses keys.
    pub(crate) fn assert_no_hold_is_valid_without_a_key(&self, connection: &mut RawConnection) {
        let owners = owners(connection);
        let wrong = self
            .guards
            .iter()
            .zip(&owners)
            .filter(|(guard, owner)| guard.owner() != **owner && guard.is_held())
            .count();
        assert_eq!(wrong, 0, "believers without a key");
    }

    /// Releases all, every second one by `unlock`, and waits until the server has acknowledged
    /// every release. Each is told by then if it was lost, and once; the others' channels close
    /// without a word.
    pub(crate) fn release_all(mut self) -> (Client, Time) {
        self.look();
        while let Some(guard) = self.guards.pop() {
            let number = self.guards.len();
            if number.is_multiple_of(2) {
                drop(guard);
                continue;
            }
            match (guard.unlock(), self.seen[number].reason) {
                (Ok(()), None) => {}
                (Err(Error::Lost { reason, .. }), Some(told)) if reason == told => {}
                (result, told) => panic!("{} told {told:?}, unlock: {result:?}", name(number)),
            }
        }
        self.time.wait_until("no release is queued", || self.client.stats().queued_releases == 0);
        for (number, told) in self.told.iter().enumerate() {
            let reason = self.seen[number].reason;
            assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected), "{number}: {reason:?}");
        }
        let lost = self.seen.iter().filter(|seen| seen.reason.is_some()).count();
        let stats = self.client.stats();
        assert_eq!((stats.held, stats.panics, stats.abandoned_releases), (0, 0, 0));
        assert_eq!(usize::try_from(stats.lost), Ok(lost));
        (self.client.clone(), self.time.clone())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        forget_if_failed(&mut self.guards);
    }
}

/// A failed test must not wait for thousands of releases, each for as long as one may take while
/// the server is stopped.
fn forget_if_failed(guards: &mut Vec<LockGuard>) {
    if thread::panicking() {
        guards.drain(..).for_each(std::mem::forget);
    }
}

/// Whether the server has said that the hold is gone. Then it is lost at once, however long it
/// would have been valid.
fn is_the_servers_word(reason: LostReason) -> bool {
    matches!(reason, LostReason::Deleted | LostReason::TakenOver)
}

/// The owner of each lock of the fleet, as the server has it. Empty for a lock that is free.
pub(crate) fn owners(connection: &mut RawConnection) -> Vec<String> {
    const AT_ONCE: usize = 1000;
    let script = "local owners = {} \
        for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do \
        owners[#owners + 1] = redis.call('hkeys', string.format('survival:%05d', i))[1] or '' \
        end return owners";
    (0..MANY)
        .step_by(AT_ONCE)
        .flat_map(|first| {
            let [first, count] = [first, AT_ONCE].map(|number| number.to_string());
            connection.command(&["EVAL", script, "0", &first, &count]).texts()
        })
        .collect()
}

/// Asserts that the server has none of the fleet's locks but those of other clients.
pub(crate) fn assert_nothing_left(server: &Server, of_others: &[&Strangers]) {
    let left: Vec<_> =
        owners(&mut server.connection()).into_iter().filter(|owner| !owner.is_empty()).collect();
    let theirs: Vec<_> =
        of_others.iter().flat_map(|others| &others.guards).map(LockGuard::owner).collect();
    let ours = left.iter().filter(|owner| !theirs.contains(&owner.as_str())).count();
    assert_eq!(ours, 0, "keys of released holds");
}

/// Takes one more lock, and holds it until it has been renewed twice: time for others to be renewed
/// too, if any were. Answers how many renewals were granted meanwhile.
pub(crate) fn hold_a_canary(client: &Client, time: &Time) -> u64 {
    let before = client.stats().renewed;
    let canary = match time.flies_while(|| client.lock("canary").lock()) {
        Ok(guard) => guard,
        Err(error) => panic!("the client works no more: {error}"),
    };
    time.wait_until("the canary is renewed", || client.stats().renewed >= before + 2);
    assert!(canary.is_held());
    drop(canary);
    client.stats().renewed - before
}

/// Takes a lock and gives it back, so that whatever connection an outage has broken is replaced by
/// a new one.
pub(crate) fn come_back(client: &Client, time: &Time) {
    match time.flies_while(|| client.lock("canary").lock()) {
        Ok(guard) => drop(guard),
        Err(error) => panic!("the client works no more: {error}"),
    }
    time.wait_until("every release is acknowledged", || {
        let stats = client.stats();
        stats.unread_releases == 0 && stats.queued_releases == 0
    });
}

/// How often the server was asked whether a hold is there, by renewals and releases.
pub(crate) fn questions(server: &Server) -> u64 {
    server.command_calls("hexists")
}

/// Asserts that nothing is left of the fleet, that nothing comes back, and that no renewal asks for
/// it.
pub(crate) fn assert_no_orphan(
    server: &Server,
    (client, time): &(Client, Time),
    of_others: &[&Strangers],
) {
    assert_nothing_left(server, of_others);
    come_back(client, time);
    let before = questions(server);
    let renewed = hold_a_canary(client, time);
    // Beside the canary's own: its release.
    assert!(questions(server) - before <= renewed + 1, "something else was renewed");
    assert_nothing_left(server, of_others);
}

/// How long a key had to live, at a moment after `asked` and before `answered`.
struct Look {
    asked: Instant,
    answered: Instant,
    left: Duration,
}

/// Locks that another client holds, for so long that it never renews them.
pub(crate) struct Strangers {
    guards: Vec<LockGuard>,
    connection: RawConnection,
    /// How long each had to live, and between which moments.
    left: Vec<Look>,
}

impl Strangers {
    pub(crate) fn take(server: &Server, names: &[String]) -> Self {
        let client = built(Client::builder().url(&server.url()));
        let guards = names
            .iter()
            .map(|name| match client.lock(name).with_lease(LONG).lock() {
                Ok(guard) => guard,
                Err(error) => panic!("{name} is not granted to another client: {error}"),
            })
            .collect();
        let mut strangers = Self { guards, connection: server.connection(), left: Vec::new() };
        strangers.left = strangers.look();
        strangers
    }

    /// Asserts that every key is what it was: the same owner, the same count, and its time to live
    /// neither cut nor prolonged.
    pub(crate) fn assert_intact(&mut self) {
        let looks = self.look();
        for (look, before) in looks.iter().zip(&self.left) {
            // The server's clock is another one.
            let slack = Duration::from_millis(500);
            let shortest = look.asked.saturating_duration_since(before.answered);
            let longest = look.answered.saturating_duration_since(before.asked);
            let most = before.left.saturating_sub(shortest) + slack;
            let least = before.left.saturating_sub(longest + slack);
            assert!(
                (least..=most).contains(&look.left),
                "a stranger has {:?} left and not {least:?} to {most:?}",
                look.left
            );
        }
        self.left = looks;
    }

    fn look(&mut self) -> Vec<Look> {
        let Self { guards, connection, .. } = self;
        guards
            .iter()
            .map(|guard| {
                let name = guard.name();
                let fields = connection.command(&["HGETALL", &name]).texts();
                assert_eq!(fields, [guard.owner(), "1"], "{name}");
                assert!(guard.is_held(), "{name}");
                let asked = now();
                let millis = connection.command(&["PTTL", &name]).integer();
                let left = Duration::from_millis(u64::try_from(millis).unwrap_or_default());
                Look { asked, answered: now(), left }
            })
            .collect()
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        forget_if_failed(&mut self.guards);
    }
}
