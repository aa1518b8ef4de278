//! The idle connections to a server, the queue for a connection, and the rule when to open another
//! connection.
//!
//! Rules only: no socket, no thread, and time is an argument. The last used connection is the first
//! taken, so a connection that is not needed becomes idle, and is closed after a minute.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Round trip above which a server is far: a queued call loses more time than another connection
/// costs.
const FAR: Duration = Duration::from_micros(150);

/// Time after which an unneeded connection is closed.
const MAX_UNUSED: Duration = Duration::from_secs(60);

/// Returns whether a connection, last used at `used_at`, is no longer needed. A connection that
/// owes replies is needed.
pub(crate) fn is_needless(used_at: Instant, has_unread: bool, now: Instant) -> bool {
    now.saturating_duration_since(used_at) > MAX_UNUSED && !has_unread
}

/// Largest number of connections, to a near and to a far server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) near: usize,
    pub(crate) far: usize,
}

/// The connections `C` to a server, and the waiting callers `W`.
///
/// While a caller waits, no connection is idle, and at least one is in use or being opened. When
/// put back, this connection serves the queue; when closed, another connection is opened.
#[derive(Debug)]
pub(crate) struct Pool<C, W> {
    limits: Limits,
    /// The last used connection is at the end.
    idle: Vec<C>,
    queue: VecDeque<W>,
    /// Number of connections idle, in use or being opened.
    open: usize,
    /// Whether a connection is being opened.
    is_connecting: bool,
    /// The shortest round trip while connecting.
    round_trip: Option<Duration>,
}

impl<C, W> Pool<C, W> {
    pub(crate) fn new(limits: Limits) -> Self {
        let (idle, queue) = (Vec::new(), VecDeque::new());
        Self { limits, idle, queue, open: 0, is_connecting: false, round_trip: None }
    }

    /// Takes the last used idle connection, if possible a connection that `is_preferred` accepts.
    /// `None` if no connection is idle.
    pub(crate) fn take(&mut self, is_preferred: impl Fn(&C) -> bool) -> Option<C> {
        match self.idle.iter().rposition(is_preferred) {
            Some(index) => Some(self.idle.remove(index)),
            None => self.idle.pop(),
        }
    }

    /// Takes all idle connections that `is_wanted` accepts.
    pub(crate) fn take_if(&mut self, is_wanted: impl Fn(&C) -> bool) -> Vec<C> {
        self.idle.extract_if(.., |connection| is_wanted(connection)).collect()
    }

    /// Takes the last used idle connection that `is_wanted` accepts. `None` without such a
    /// connection.
    pub(crate) fn take_only(&mut self, is_wanted: impl Fn(&C) -> bool) -> Option<C> {
        let index = self.idle.iter().rposition(is_wanted)?;
        Some(self.idle.remove(index))
    }

    /// Queues a caller, as no connection is idle. Returns whether to open another connection now.
    pub(crate) fn wait(&mut self, waiter: W) -> bool {
        self.queue.push_back(waiter);
        self.begin_to_connect()
    }

    /// Removes a waiter from the queue.
    pub(crate) fn leave(&mut self, is_own: impl Fn(&W) -> bool) {
        self.queue.retain(|waiter| !is_own(waiter));
    }

    /// Takes the next waiter.
    pub(crate) fn next(&mut self) -> Option<W> {
        self.queue.pop_front()
    }

    /// Returns the next waiter, which stays in the queue.
    pub(crate) fn peek(&self) -> Option<&W> {
        self.queue.front()
    }

    /// Adds an idle connection. Call only without a waiter. `is_later`: whether an idle connection
    /// was used later than `connection`.
    pub(crate) fn put(&mut self, connection: C, is_later: impl Fn(&C) -> bool) {
        let last_before = self.idle.iter().rposition(|idle| !is_later(idle));
        self.idle.insert(last_before.map_or(0, |index| index + 1), connection);
    }

    /// Counts the end of a connection in use, or taken from the idle connections. Returns whether
    /// to open another connection now.
    pub(crate) fn ended(&mut self) -> bool {
        self.open -= 1;
        self.begin_to_connect()
    }

    /// Records that the connection being opened is open, and in use. `round_trip` is the duration
    /// of its first command.
    pub(crate) fn connected(&mut self, round_trip: Option<Duration>) {
        self.is_connecting = false;
        self.round_trip = self.round_trip.into_iter().chain(round_trip).min();
    }

    /// Records that the connection being opened has failed. Returns the queue if no other
    /// connection serves the queue, and otherwise an empty queue.
    pub(crate) fn not_connected(&mut self) -> VecDeque<W> {
        self.is_connecting = false;
        self.open -= 1;
        if self.open == 0 { std::mem::take(&mut self.queue) } else { VecDeque::new() }
    }

    /// Returns whether the caller is to open another connection now: a caller waits, the limit is
    /// not reached, and no connection is being opened. If so, counts the connection as being
    /// opened.
    pub(crate) fn begin_to_connect(&mut self) -> bool {
        let is_wanted = !self.queue.is_empty() && self.open < self.most() && !self.is_connecting;
        self.open += usize::from(is_wanted);
        self.is_connecting |= is_wanted;
        is_wanted
    }

    /// Takes all waiters.
    pub(crate) fn take_queue(&mut self) -> VecDeque<W> {
        std::mem::take(&mut self.queue)
    }

    /// Takes the least recently used idle connection, if `is_too_old` accepts the connection. The
    /// caller closes the connection.
    pub(crate) fn take_oldest(&mut self, is_too_old: impl Fn(&C) -> bool) -> Option<C> {
        let is_first_old = self.idle.first().is_some_and(is_too_old);
        is_first_old.then(|| {
            self.open -= 1;
            self.idle.remove(0)
        })
    }

    /// Forgets the round trip, because another server has the address.
    pub(crate) fn forget_round_trip(&mut self) {
        self.round_trip = None;
    }

    /// Returns the number of connections idle, in use or being opened.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Returns whether a connection is open, and not only being opened.
    pub(crate) fn has_connected(&self) -> bool {
        self.open > usize::from(self.is_connecting)
    }

    /// Returns the number of idle connections.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Returns the number of connections in use or being opened.
    pub(crate) fn in_use(&self) -> usize {
        self.open - self.idle.len()
    }

    /// Returns whether no connection is in use or being opened, and no caller waits.
    pub(crate) fn is_unused(&self) -> bool {
        self.in_use() == 0 && self.queue.is_empty()
    }

    /// Returns the largest number of connections to a near or to a far server, by the measured
    /// round trip.
    fn most(&self) -> usize {
        let is_far = self.round_trip.is_some_and(|round_trip| round_trip > FAR);
        if is_far { self.limits.far } else { self.limits.near }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use hashed_wheel::{Clock, ManualClock};
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { near: 3, far: 5 };

    const NEAR: Duration = Duration::from_micros(50);

    /// What the threads of the callers do with the pool, each step with the pool locked once.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A caller takes an idle connection, or queues.
        Enter { prefers: u8 },
        /// A caller takes an idle connection, and does not queue.
        TakeOnly { wants: u8 },
        /// A thread takes some of the idle connections.
        TakeIf { wants: u8 },
        /// The owner of a connection is done.
        Return { which: usize, is_too_old: bool },
        /// The owner of a connection takes some of the queue along.
        TakeAlong { most: usize },
        /// The owner of a connection has closed the connection.
        Close { which: usize },
        /// A waiter gives up.
        Leave { which: usize },
        /// The attempt to connect succeeds.
        Connected { round_trip: Option<Duration> },
        /// The attempt to connect fails. With `queue_again`, the failure is not for the queue.
        NotConnected { queue_again: bool },
        /// A thread that has connected asks whether to connect again.
        AskAgain,
        /// All calls are ended.
        Abort,
        /// Another server has the address.
        ForgetRoundTrip,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let round_trips = prop_oneof![
            Just(None),
            (10_u64..1000).prop_map(|micros| Some(Duration::from_micros(micros))),
        ];
        let which = || any::<usize>();
        let step = prop_oneof![
            8 => any::<u8>().prop_map(|prefers| Step::Enter { prefers }),
            1 => any::<u8>().prop_map(|wants| Step::TakeOnly { wants }),
            1 => any::<u8>().prop_map(|wants| Step::TakeIf { wants }),
            6 => (which(), any::<bool>())
                .prop_map(|(which, is_too_old)| Step::Return { which, is_too_old }),
            2 => (0..3_usize).prop_map(|most| Step::TakeAlong { most }),
            2 => which().prop_map(|which| Step::Close { which }),
            1 => which().prop_map(|which| Step::Leave { which }),
            4 => round_trips.prop_map(|round_trip| Step::Connected { round_trip }),
            1 => any::<bool>().prop_map(|queue_again| Step::NotConnected { queue_again }),
            2 => Just(Step::AskAgain),
            1 => Just(Step::Abort),
            1 => Just(Step::ForgetRoundTrip),
        ];
        prop::collection::vec(step, 1..120)
    }

    /// Connections and waiters are numbers, and grow.
    #[derive(Debug)]
    struct CheckedPool {
        pool: Pool<u32, u32>,
        /// The idle connections, by the moment of their return.
        idle: BTreeMap<u32, u32>,
        in_use: Vec<u32>,
        waiting: BTreeSet<u32>,
        connecting: usize,
        round_trip: Option<Duration>,
        last_number: u32,
    }

    impl CheckedPool {
        fn new() -> Self {
            Self {
                pool: Pool::new(LIMITS),
                idle: BTreeMap::new(),
                in_use: Vec::new(),
                waiting: BTreeSet::new(),
                connecting: 0,
                round_trip: None,
                last_number: 0,
            }
        }

        fn number(&mut self) -> u32 {
            self.last_number += 1;
            self.last_number
        }

        fn open(&self) -> usize {
            self.idle.len() + self.in_use.len() + self.connecting
        }

        /// The idle connection that was returned last, of those wanted.
        fn last_used(&self, is_wanted: impl Fn(&u32) -> bool) -> Option<u32> {
            self.idle.values().rev().copied().find(is_wanted)
        }

        fn use_idle(&mut self, connection: u32) {
            self.idle.retain(|_, idle| *idle != connection);
            self.in_use.push(connection);
        }

        /// The pool said whether to connect. The model agrees.
        fn expect_connect(&mut self, connects: bool) {
            let is_far = self.round_trip.is_some_and(|round_trip| round_trip > FAR);
            let most = if is_far { LIMITS.far } else { LIMITS.near };
            let is_due = !self.waiting.is_empty() && self.connecting == 0 && self.open() < most;
            assert_eq!(connects, is_due);
            self.connecting += usize::from(connects);
            assert!(self.connecting <= 1, "one at a time");
        }

        fn enter(&mut self, prefers: u8) {
            let is_preferred = is_wanted(prefers);
            let expected = self.last_used(is_preferred).or_else(|| self.last_used(|_| true));
            assert_eq!(self.pool.take(is_preferred), expected);
            if let Some(connection) = expected {
                self.use_idle(connection);
            } else {
                let waiter = self.number();
                self.waiting.insert(waiter);
                let connects = self.pool.wait(waiter);
                self.expect_connect(connects);
            }
        }

        /// The first of the queue gets the connection. Without a queue, the connection is idle.
        fn give_back(&mut self, connection: u32, is_too_old: bool) {
            let next = self.pool.next();
            assert_eq!(next, self.waiting.pop_first(), "first in, first out");
            if next.is_some() {
                return;
            }
            self.in_use.retain(|used| *used != connection);
            let returned_at = self.number();
            self.idle.insert(returned_at, connection);
            self.pool.put(connection, |_| false);
            let old = self.pool.take_oldest(|_| is_too_old);
            let oldest = self.idle.first_key_value().map(|(_, oldest)| *oldest);
            assert_eq!(old, oldest.filter(|_| is_too_old));
            self.idle.retain(|_, idle| Some(*idle) != old);
        }

        fn close(&mut self, connection: u32) {
            self.in_use.retain(|used| *used != connection);
            let connects = self.pool.ended();
            self.expect_connect(connects);
        }

        fn chosen(&self, which: usize) -> Option<u32> {
            let count = self.in_use.len();
            (count > 0).then(|| self.in_use[which % count])
        }

        fn take_if(&mut self, is_wanted: impl Fn(&u32) -> bool) {
            let expected: BTreeSet<u32> = self.idle.values().copied().filter(&is_wanted).collect();
            let taken = self.pool.take_if(is_wanted);
            assert_eq!(taken.len(), expected.len());
            assert_eq!(BTreeSet::from_iter(taken), expected);
            for connection in expected {
                self.use_idle(connection);
            }
        }

        fn fail_to_connect(&mut self, queue_again: bool) {
            if self.connecting == 0 {
                return;
            }
            self.connecting = 0;
            let ended = self.pool.not_connected();
            if self.open() > 0 {
                assert!(ended.is_empty(), "another connection serves the queue");
                return;
            }
            let waiting = std::mem::take(&mut self.waiting);
            assert!(ended.iter().eq(&waiting), "the whole queue, in its order");
            for waiter in ended.into_iter().filter(|_| queue_again) {
                self.waiting.insert(waiter);
                let connects = self.pool.wait(waiter);
                self.expect_connect(connects);
            }
        }

        fn run(&mut self, step: Step) {
            match step {
                Step::Enter { prefers } => self.enter(prefers),
                Step::TakeOnly { wants } => {
                    let expected = self.last_used(is_wanted(wants));
                    assert_eq!(self.pool.take_only(is_wanted(wants)), expected);
                    if let Some(connection) = expected {
                        self.use_idle(connection);
                    }
                }
                Step::TakeIf { wants } => self.take_if(is_wanted(wants)),
                Step::Return { which, is_too_old } => {
                    if let Some(connection) = self.chosen(which) {
                        self.give_back(connection, is_too_old);
                    }
                }
                Step::TakeAlong { most } => {
                    for _ in 0..most.min(self.in_use.len() * most) {
                        assert_eq!(self.pool.peek(), self.waiting.first());
                        assert_eq!(self.pool.next(), self.waiting.pop_first());
                    }
                }
                Step::Close { which } => {
                    if let Some(connection) = self.chosen(which) {
                        self.close(connection);
                    }
                }
                Step::Leave { which } => {
                    let place = which % self.waiting.len().max(1);
                    if let Some(leaving) = self.waiting.iter().nth(place).copied() {
                        self.waiting.remove(&leaving);
                        self.pool.leave(|waiter| *waiter == leaving);
                    }
                }
                Step::Connected { round_trip } => {
                    if self.connecting > 0 {
                        self.connecting = 0;
                        self.round_trip = self.round_trip.into_iter().chain(round_trip).min();
                        self.pool.connected(round_trip);
                        let connection = self.number();
                        self.in_use.push(connection);
                    }
                }
                Step::NotConnected { queue_again } => self.fail_to_connect(queue_again),
                Step::AskAgain => {
                    let connects = self.pool.begin_to_connect();
                    self.expect_connect(connects);
                }
                Step::Abort => {
                    self.take_if(|_| true);
                    let ended = self.pool.take_queue();
                    let waiting = std::mem::take(&mut self.waiting);
                    assert!(ended.iter().eq(&waiting), "the whole queue, in its order");
                }
                Step::ForgetRoundTrip => {
                    self.round_trip = None;
                    self.pool.forget_round_trip();
                }
            }
        }

        fn check(&self) {
            assert_eq!(self.pool.open(), self.open());
            assert_eq!(self.pool.peek(), self.waiting.first());
            let is_served = !self.in_use.is_empty() || self.connecting > 0;
            assert_eq!(self.pool.has_connected(), self.open() > self.connecting);
            assert_eq!(self.pool.is_unused(), !is_served && self.waiting.is_empty());
            if !self.waiting.is_empty() {
                assert!(self.idle.is_empty(), "a connection is idle while a caller waits");
                assert!(is_served, "nothing serves the queue");
            }
        }

        /// Every owner returns, and the attempt to connect fails: no waiter is left. Then the idle
        /// connections end too.
        fn end(&mut self) {
            while !self.waiting.is_empty() {
                match self.in_use.first() {
                    Some(connection) => self.give_back(*connection, false),
                    None => self.fail_to_connect(false),
                }
                self.check();
            }
            self.fail_to_connect(false);
            while let Some(connection) = self.chosen(0) {
                self.give_back(connection, false);
            }
            self.check();
            assert!(self.pool.is_unused());
            while let Some(connection) = self.last_used(|_| true) {
                assert_eq!(self.pool.take(|_| false), Some(connection), "last in, first out");
                self.use_idle(connection);
                self.close(connection);
            }
            assert_eq!((self.pool.open(), self.pool.has_connected()), (0, false));
            assert_eq!((self.pool.take(|_| true), self.pool.next()), (None, None));
        }
    }

    /// Some numbers, mostly more than one.
    fn is_wanted(wants: u8) -> impl Fn(&u32) -> bool + Copy {
        move |number| number % 4 == u32::from(wants) % 4
    }

    /// A pool with so many connections, all in use and near.
    fn all_in_use(count: usize) -> Pool<u32, u32> {
        let mut pool = Pool::new(LIMITS);
        for waiter in (0..).take(count) {
            assert!(pool.wait(waiter));
            pool.connected(Some(NEAR));
            assert_eq!(pool.next(), Some(waiter));
        }
        pool
    }

    proptest! {
        #[test]
        fn a_pool_agrees_with_a_model_after_any_steps(steps in steps()) {
            let mut checked = CheckedPool::new();
            for step in steps {
                checked.run(step);
                checked.check();
            }
            checked.end();
        }
    }

    #[test]
    fn a_near_server_gets_fewer_connections_than_a_far_one() {
        for (round_trip, most) in [(NEAR, 3), (FAR, 3), (FAR * 2, 5)] {
            let mut pool = Pool::<u32, u32>::new(LIMITS);
            let mut connects = pool.wait(0);
            for _ in 0..most {
                assert!(connects);
                pool.connected(Some(round_trip));
                connects = pool.begin_to_connect();
            }
            assert!(!connects);
            assert_eq!(pool.open(), most);
        }
    }

    #[test]
    fn the_shortest_round_trip_counts_until_forgotten() {
        let mut pool = all_in_use(3);
        assert!(!pool.wait(3));
        pool.forget_round_trip();
        assert!(!pool.begin_to_connect(), "an unknown server counts as near");
        pool.connected(Some(FAR * 2));
        assert!(pool.begin_to_connect());
        pool.connected(Some(FAR * 3));
        assert!(pool.begin_to_connect());
        pool.connected(Some(NEAR));
        assert!(!pool.begin_to_connect());
    }

    #[test]
    fn connect_failure_leaves_the_queue_to_connections_in_use() {
        let mut pool = all_in_use(1);
        assert!(pool.wait(7));
        assert!(!pool.wait(8), "one is being opened");
        assert!(pool.not_connected().is_empty());
        assert!(pool.ended(), "the queue needs another connection");
        assert_eq!(pool.not_connected(), [7, 8]);
        assert!(pool.is_unused());
    }

    #[test]
    fn a_connection_that_ends_without_a_queue_is_not_replaced() {
        let mut pool = all_in_use(2);
        assert!(!pool.ended());
        assert!(!pool.ended());
        assert_eq!(pool.open(), 0);
    }

    #[test]
    fn a_connection_that_is_put_back_unused_keeps_its_place() {
        let mut pool = Pool::<u32, ()>::new(LIMITS);
        for used_at in [2, 3, 1] {
            pool.put(used_at, |idle| *idle > used_at);
        }
        let taken: Vec<u32> = std::iter::from_fn(|| pool.take(|_| false)).collect();
        assert_eq!(taken, [3, 2, 1]);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// When a connection was used last.
    struct Used {
        at: Instant,
        owes: bool,
    }

    fn put(pool: &mut Pool<Used, ()>, connection: Used) {
        let at = connection.at;
        pool.put(connection, |idle| idle.at > at);
    }

    /// A pool whose connections are all idle, each used last at one of these times.
    fn idle(used: impl IntoIterator<Item = Instant>) -> Pool<Used, ()> {
        let mut pool = Pool::new(Limits { near: 8, far: 16 });
        for at in used {
            assert!(pool.wait(()));
            pool.connected(None);
            assert!(pool.next().is_some());
            put(&mut pool, Used { at, owes: false });
        }
        pool
    }

    /// A call takes a connection and puts it back, as `CallPool` does. Whether another was closed.
    fn call(pool: &mut Pool<Used, ()>, now: Instant) -> bool {
        let mut connection = pool.take(|_| false).unwrap();
        connection.at = now;
        put(pool, connection);
        pool.take_oldest(|idle| is_needless(idle.at, idle.owes, now)).is_some()
    }

    #[test]
    fn connections_beyond_need_are_closed_after_a_minute() {
        let begun = ManualClock::new().now();
        let mut pool = idle([begun; 8]);
        // One call a second needs one connection.
        for second in 0..=60 {
            assert!(!call(&mut pool, begun + SECOND * second), "after {second} s");
        }
        let closed = (61..120).filter(|second| call(&mut pool, begun + SECOND * *second)).count();
        assert_eq!((closed, pool.open()), (7, 1));
        // The last stays, however rare the calls are.
        assert!(!call(&mut pool, begun + SECOND * 3600));
        assert!(pool.is_unused() && pool.open() == 1);
    }

    #[test]
    fn each_connection_is_closed_a_minute_after_its_own_last_use() {
        let begun = ManualClock::new().now();
        let mut pool = idle([0, 20, 40].map(|second| begun + SECOND * second));
        let closed: Vec<u32> =
            (40..200).filter(|second| call(&mut pool, begun + SECOND * *second)).collect();
        assert_eq!(closed, [61, 81]);
    }

    #[test]
    fn connections_that_are_needed_stay() {
        let begun = ManualClock::new().now();
        let mut pool = idle([begun; 4]);
        // Every 50 seconds four calls at once, and one alone just before.
        for second in (0..600).step_by(50) {
            let now = begun + SECOND * second;
            let taken: Vec<Used> = (0..4).map(|_| pool.take(|_| false).unwrap()).collect();
            for _ in taken {
                put(&mut pool, Used { at: now, owes: false });
            }
            assert!(!call(&mut pool, now + SECOND * 49), "after {second} s");
        }
        assert_eq!(pool.open(), 4);
    }

    #[test]
    fn a_connection_that_owes_a_reply_is_not_closed() {
        let begun = ManualClock::new().now();
        let mut pool = idle([begun; 2]);
        let last = pool.take(|_| false).unwrap();
        let mut first = pool.take(|_| false).unwrap();
        first.owes = true;
        put(&mut pool, first);
        put(&mut pool, last);
        assert!(!call(&mut pool, begun + SECOND * 100));
        assert_eq!(pool.open(), 2);
    }

    #[test]
    fn after_connections_were_closed_as_many_can_be_opened_again() {
        let begun = ManualClock::new().now();
        let mut pool = idle([begun; 8]);
        let mut in_use: Vec<Used> = (0..8).map(|_| pool.take(|_| false).unwrap()).collect();
        assert!(!pool.wait(()), "all are open");
        assert!(pool.next().is_some());
        in_use.drain(..).for_each(|connection| put(&mut pool, connection));
        let later = begun + SECOND * 61;
        while call(&mut pool, later) {}
        assert_eq!(pool.open(), 1);
        let _in_use = pool.take(|_| false);
        assert!(pool.wait(()), "another is opened");
    }
}
