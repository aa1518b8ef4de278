//! Locks between real processes: some are killed, some are stopped, some fork.
//!
//! A child process is this test program again, with its role in the environment. It runs only
//! [`child_role`], a test that does nothing without a role.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use hashed_wheel::Parker;
use wheellock::{Client, Clock, Error, LockGuard, LostReason, SystemClock};
use wheellock_fixture::{Proxy, RawConnection, Reply, Server, TestProcess, wait_until};

use crate::common::expected::lost;
use crate::common::forked::Child;
use crate::many_threads::enter_in_many_threads;

const SECOND: Duration = Duration::from_secs(1);
/// The watchdog's lease in the children, so that a killed one is soon made up for.
const LEASE: Duration = SECOND;
/// What a busy machine may take for anything that takes no time. Less than the poll bound of a
/// second.
const AT_ONCE: Duration = Duration::from_millis(900);
/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

fn now() -> Instant {
    SystemClock.now()
}

fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}

pub(crate) fn connect(server: &Server) -> Client {
    connect_with_lease(&server.url(), LEASE)
}

fn connect_with_lease(url: &str, lease: Duration) -> Client {
    Client::builder().url(url).watchdog_lease(lease).build().unwrap()
}

/// Starts a child process.
pub(crate) fn child(role: &str, server: &Server, settings: &[(&str, &str)]) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "processes::child_role", "--nocapture", "--test-threads=2"]);
    command.env(ROLE, role).env("SERVER", server.url());
    command.envs(settings.iter().copied());
    TestProcess::spawn(&mut command)
}

const ROLE: &str = "WHEELLOCK_TEST_ROLE";

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(role) = env::var(ROLE) else { return };
    let url = env::var("SERVER").unwrap();
    let client = connect_with_lease(&url, LEASE);
    match role.as_str() {
        "hold" => hold(&client),
        "take" => take(&client),
        "be stopped" => be_stopped(&client),
        "leave a channel" => leave_a_channel(&client),
        "fork" => fork_and_go_on(&client, &url),
        "count" => count(&client),
        "enter in many threads" => enter_in_many_threads(&client, &url),
        other => panic!("there is no role {other:?}"),
    }
}

/// Does nothing, without end.
fn rest() -> ! {
    loop {
        SystemClock.park(&Parker::new(), None, &never());
    }
}

/// The fields of the hash at a key, as the server has them.
fn owners(server: &Server, key: &str) -> Vec<String> {
    server.command(&["HKEYS", key]).texts()
}

fn exists(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).integer() == 1
}

// Crash.

fn hold(client: &Client) {
    let _guard = client.lock("a").lock().unwrap();
    println!("holds");
    wait_until("the lock was renewed", LIMIT, || client.stats().renewed >= 3);
    println!("renewed");
    rest()
}

fn take(client: &Client) {
    println!("waits");
    let guard = client.lock("a").lock().unwrap();
    println!("took {}", guard.owner());
    guard.unlock().unwrap();
    println!("released");
}

#[test]
fn lock_of_killed_holder_goes_to_waiter_process_within_lease() {
    let server = Server::start();
    let mut holder = child("hold", &server, &[]);
    holder.wait_for_line("holds", LIMIT);
    let mut waiter = child("take", &server, &[]);
    waiter.wait_for_line("waits", LIMIT);
    // It has been renewed to live longer than its first lease, and its owner is alive.
    holder.wait_for_line("renewed", LIMIT);
    let owner = owners(&server, "a");
    assert!(waiter.lines().is_empty(), "it took a lock that was held");
    let killed_at = now();
    holder.kill();
    let took = waiter.wait_for_line("took", LIMIT);
    let delay = since(killed_at);
    assert!(delay < LEASE + AT_ONCE, "free after {delay:?}");
    assert!(!took.contains(&owner[0]));
    waiter.wait_for_line("released", LIMIT);
    assert_eq!(waiter.wait_for_exit(LIMIT), 0);
    assert!(!exists(&server, "a"));
}

// Stopped for longer than the lease.

fn be_stopped(client: &Client) {
    let guard = client.lock("a").lock().unwrap();
    // Before the line is printed, for the stop may come right after it.
    let mut last = now();
    println!("holds {}", guard.owner());
    loop {
        let at = now();
        let held = guard.is_held();
        // Stopped before `at`: what `held` says was asked after that. Stopped between the two: it
        // says no already.
        let was_stopped = at.saturating_duration_since(last) > LEASE / 2;
        if was_stopped || !held {
            assert!(since(last) > LEASE / 2, "it was lost without having been stopped");
            println!("woke held={held} remaining={:?}", guard.remaining());
            break;
        }
        last = at;
    }
    let reason = guard.lost().recv_timeout(LIMIT);
    println!("told {reason:?}");
    let ever_again = (0..100_000).any(|_| guard.is_held());
    println!("ever again={ever_again}");
    println!("unlock {:?}", guard.unlock());
    client.shutdown(LIMIT);
    println!("ended");
}

#[test]
fn process_stopped_past_lease_sees_loss_and_spares_new_owner() {
    let server = Server::start();
    let mut stopped = child("be stopped", &server, &[]);
    let line = stopped.wait_for_line("holds", LIMIT);
    let old_owner = line.trim_start_matches("holds ").to_owned();
    assert_eq!(owners(&server, "a"), [old_owner.as_str()]);
    stopped.pause();
    let client = connect(&server);
    let guard = client.lock("a").try_lock_for(LIMIT).unwrap().expect("the lease ends");
    assert_eq!(owners(&server, "a"), [guard.owner()]);
    // From here until the new owner's unlock, the old hold must not be valid.
    stopped.resume();
    let woke = stopped.wait_for_line("", LIMIT);
    assert!(woke.starts_with("woke held=false remaining=0"), "{}", stopped.output());
    let told = stopped.wait_for_line("told", LIMIT);
    assert!(
        ["Paused", "TakenOver", "ServerUnreachable"].iter().any(|why| told.contains(why)),
        "{told}"
    );
    assert_eq!(stopped.wait_for_line("ever again", LIMIT), "ever again=false");
    let unlocked = stopped.wait_for_line("unlock", LIMIT);
    assert!(unlocked.starts_with("unlock Err(Lost"), "{unlocked}");
    stopped.wait_for_line("ended", LIMIT);
    assert_eq!(stopped.wait_for_exit(LIMIT), 0);
    assert!(guard.is_held());
    assert_eq!(owners(&server, "a"), [guard.owner()]);
    guard.unlock().unwrap();
}

fn leave_a_channel(client: &Client) {
    client.lock("a").lock().unwrap().unlock().unwrap();
    println!("left");
    rest()
}

#[test]
fn repeatedly_stopped_process_still_unsubscribes() {
    let server = Server::start();
    let listeners = || {
        let channel = ["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"];
        server.command(&channel).array()[1].integer()
    };
    let guard = connect(&server).lock("a").lock().unwrap();
    let mut process = child("leave a channel", &server, &[]);
    wait_until("it listens", LIMIT, || listeners() == 1);
    guard.unlock().unwrap();
    process.wait_for_line("left", LIMIT);
    wait_until("there is no subscriber", LIMIT, || {
        // Each stop interrupts what its threads wait for.
        process.pause();
        process.resume();
        listeners() == 0
    });
}

#[test]
fn a_lease_counts_from_before_its_request_was_sent() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let lease = LEASE * 6;
    let client = connect_with_lease(&proxy.url(), lease);
    let delay = LEASE / 10;
    proxy.delay_replies(delay);
    let guard = client.lock("a").lock().unwrap();
    assert!(guard.remaining() + delay <= lease, "{:?}", guard.remaining());
    let mut most = Duration::ZERO;
    wait_until("it was renewed", LIMIT, || {
        most = most.max(guard.remaining());
        client.stats().renewed >= 2
    });
    assert!(most + delay <= lease, "{most:?}");
    // Over before the answer is here: then it was never held.
    let late = client.lock("b").with_lease(delay / 2).lock().map(drop);
    let name = "b".to_owned();
    let reason = LostReason::Expired;
    assert_eq!(late, lost(&name, reason));
}

// Fork.

/// In the child process that a test started, which is the parent of a fork.
fn fork_and_go_on(client: &Client, url: &str) {
    let address = address_of(url);
    let other = connect_with_lease(url, LEASE);
    let blocker = other.lock("contended").lock().unwrap();
    thread::scope(|scope| {
        // Threads that wait, with a subscription, when the fork comes.
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                thread::Builder::new()
                    .spawn_scoped(scope, || client.lock("contended").lock().unwrap().unlock())
                    .unwrap()
            })
            .collect();
        wait_until("the threads wait", LIMIT, || client.stats().waiters == 4);
        for _ in 0..3 {
            let mut held = Some([(); 2].map(|()| client.lock("a").lock().unwrap()));
            let renewed = client.stats().renewed;
            let child = Child::doing(LIMIT / 2, || {
                look_from_a_fork(client, held.take().unwrap(), url);
            });
            let [outer, inner] = held.unwrap();
            // While the child uses its client and ends, the parent goes on, on the same connections
            // as before.
            child.wait_while(|| {
                let guard = client.lock("b").lock().unwrap();
                assert!(guard.is_held());
                guard.unlock().unwrap();
                assert!(outer.is_held());
            });
            wait_until("the lock is renewed", LIMIT, || {
                assert!(outer.is_held() && inner.is_held());
                client.stats().renewed > renewed + 3
            });
            assert_eq!(count_of(address, "a", outer.owner()), 2);
            assert!(outer.lost().try_recv().is_err());
            inner.unlock().unwrap();
            outer.unlock().unwrap();
            assert_eq!(count_of(address, "a", "anybody"), 0);
        }
        // The subscription of the parent still brings its messages.
        let released_at = now();
        blocker.unlock().unwrap();
        for thread in waiting {
            thread.join().unwrap().unwrap();
        }
        let took = since(released_at);
        assert!(took < AT_ONCE, "four hand-overs took {took:?}");
    });
    let stats = client.stats();
    assert_eq!((stats.lost, stats.panics), (0, 0));
    // A busy machine may be late once. A connection that the fork spoilt would cost more.
    assert!(stats.unanswered_renewals <= 1, "{stats:?}");
    assert_eq!(client.shutdown(LIMIT).released, 0);
    println!("fork survived");
}

fn address_of(url: &str) -> SocketAddr {
    url.trim_start_matches("redis://").trim_end_matches('/').parse().unwrap()
}

/// How often an owner holds a lock, as the server has it.
fn count_of(address: SocketAddr, key: &str, owner: &str) -> i64 {
    let mut connection = RawConnection::open(address).unwrap();
    match connection.command(&["HGET", key, owner]) {
        Reply::Nil => 0,
        count => count.text().parse().unwrap(),
    }
}

/// In the fork: looks at what it inherited, and uses a client of its own.
fn look_from_a_fork(client: &Client, guards: [LockGuard; 2], url: &str) {
    let [outer, inner] = guards;
    let owner = outer.owner().to_owned();
    assert!(!outer.is_held() && !inner.is_held());
    let (name, reason) = ("a".to_owned(), LostReason::Forked);
    assert_eq!(inner.unlock(), lost(&name, reason));
    drop(outer);
    assert_eq!(count_of(address_of(url), "a", &owner), 2, "the fork changed the parent's hold");
    assert_eq!(client.lock("a").try_lock().map(drop), Err(Error::Forked));

    let client = connect_with_lease(url, LEASE);
    assert!(client.lock("a").try_lock().unwrap().is_none());
    assert!(client.lock("a").try_lock_for(Duration::from_millis(100)).unwrap().is_none());
    let own = client.lock("the fork's").lock().unwrap();
    wait_until("the fork renews its lock", LIMIT / 4, || client.stats().renewed >= 1);
    own.unlock().unwrap();
    let _left_behind = client.lock("left behind").lock().unwrap();
    assert_eq!(client.shutdown(SECOND).released, 1);
}

#[test]
fn a_fork_inherits_no_hold_and_does_not_disturb_its_parent() {
    let server = Server::start();
    let mut process = child("fork", &server, &[]);
    process.wait_for_line("fork survived", LIMIT);
    assert_eq!(process.wait_for_exit(LIMIT), 0);
    assert_eq!(server.size(), 0);
}

// Counting.

/// Where the processes count, and what each of their threads writes down.
struct Book {
    directory: PathBuf,
}

impl Book {
    fn new() -> Self {
        let directory = env::temp_dir().join(format!("wheellock-count-{:016x}", fresh_seed()));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("counter"), format!("{:020}", 0)).unwrap();
        Self { directory }
    }

    fn counter(&self) -> u64 {
        read_counter(&File::open(self.directory.join("counter")).unwrap())
    }

    /// All lines that threads have written about one kind of event: the numbers, and the writers.
    fn entries(&self, kind: &str) -> Vec<(u64, String)> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.directory).unwrap() {
            let path = file.unwrap().path();
            let thread = path.file_name().unwrap().to_string_lossy().into_owned();
            if !thread.starts_with("log-") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            // A line is written by one call, so a kill leaves it whole or out.
            assert!(text.is_empty() || text.ends_with('\n'), "a torn line in {thread}");
            let of_kind = text.lines().filter_map(|line| line.strip_prefix(kind));
            entries.extend(of_kind.map(|number| (number.trim().parse().unwrap(), thread.clone())));
        }
        entries
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the book is left in {}", self.directory.display());
        } else {
            fs::remove_dir_all(&self.directory).unwrap();
        }
    }
}

fn read_counter(file: &File) -> u64 {
    let mut digits = [0; 20];
    file.read_exact_at(&mut digits, 0).unwrap();
    std::str::from_utf8(&digits).unwrap().parse().unwrap()
}

/// In a child process: several threads count in one file.
fn count(client: &Client) {
    let directory = PathBuf::from(env::var("BOOK").unwrap());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let directory = &directory;
            thread::Builder::new()
                .spawn_scoped(scope, move || {
                    count_on_one_thread(client, directory, thread);
                })
                .unwrap();
        }
    });
    client.shutdown(LIMIT);
    println!("counted");
}

fn count_on_one_thread(client: &Client, directory: &Path, thread: usize) {
    let log = directory.join(format!("log-{}-{thread}", process::id()));
    let mut log = OpenOptions::new().create_new(true).append(true).open(log).unwrap();
    let counter = directory.join("counter");
    let counter = OpenOptions::new().read(true).write(true).open(counter).unwrap();
    let stop = directory.join("stop");
    let lock = client.lock("counter");
    while !stop.exists() {
        let guard = lock.lock().unwrap();
        let next = read_counter(&counter) + 1;
        log.write_all(format!("will {next}\n").as_bytes()).unwrap();
        // Not alone for certain any more: leave it.
        if !guard.is_held() {
            continue;
        }
        counter.write_all_at(format!("{next:020}").as_bytes(), 0).unwrap();
        log.write_all(format!("did {next}\n").as_bytes()).unwrap();
        drop(guard);
    }
}

const PROCESSES: usize = 3;
const THREADS: usize = 4;
const KILLS: usize = 8;

#[test]
fn random_process_kills_never_corrupt_locked_counter() {
    let mut random = Random::new();
    let seed = random.seed;
    println!("WHEELLOCK_SEED={seed}");
    let server = Server::start();
    let book = Book::new();
    let start = || child("count", &server, &[("BOOK", book.directory.to_str().unwrap())]);
    let mut living: Vec<TestProcess> = (0..PROCESSES).map(|_| start()).collect();
    let mut killed = BTreeSet::new();
    for _ in 0..KILLS {
        let goal = book.counter() + random.below(60) + 1;
        wait_until("the counter moves on", LIMIT, || book.counter() >= goal);
        let victim = usize::try_from(random.below(PROCESSES as u64)).unwrap();
        let mut victim = std::mem::replace(&mut living[victim], start());
        killed.insert(victim.id().to_string());
        assert!(victim.is_running(), "{}", victim.output());
        victim.kill();
    }
    let goal = book.counter() + 100;
    wait_until("the counter moves on", LIMIT, || book.counter() >= goal);
    fs::write(book.directory.join("stop"), "").unwrap();
    for process in &mut living {
        process.wait_for_line("counted", LIMIT);
        assert_eq!(process.wait_for_exit(LIMIT), 0);
    }

    let counted = book.counter();
    let mut did: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (number, thread) in book.entries("did") {
        did.entry(number).or_default().push(thread);
    }
    for (number, threads) in &did {
        assert_eq!(threads.len(), 1, "seed {seed}: {number} was written by {threads:?}");
        assert!((1..=counted).contains(number), "seed {seed}: {number} of {counted} was lost");
    }
    // An unconfirmed number was written by a thread that was killed before it confirmed.
    let mut in_flight = book.entries("will");
    in_flight.retain(|entry| did.get(&entry.0).is_none_or(|threads| !threads.contains(&entry.1)));
    for number in (1..=counted).filter(|number| !did.contains_key(number)) {
        let explained = in_flight.iter().any(|(will, thread)| {
            let process = thread.split('-').nth(1).unwrap();
            *will == number && killed.contains(process)
        });
        assert!(explained, "seed {seed}: no process wrote {number} of {counted}");
    }
    // At most one thread of a killed process was inside.
    let of_killed: BTreeSet<_> = in_flight
        .iter()
        .filter_map(|(_, thread)| thread.split('-').nth(1))
        .filter(|process| killed.contains(*process))
        .collect();
    assert!(of_killed.len() <= KILLS);
    let confirmed = u64::try_from(did.len()).unwrap();
    let unconfirmed = u64::try_from(of_killed.len()).unwrap();
    assert!(
        (confirmed..=confirmed + unconfirmed).contains(&counted),
        "seed {seed}: {confirmed} confirmed, {unconfirmed} in flight, {counted} counted"
    );
    wait_until("the lock of the last victim is free", LEASE + AT_ONCE, || {
        !exists(&server, "counter")
    });
}

/// Small and good enough for choosing victims. The seed is new each time, or that of
/// `WHEELLOCK_SEED`.
struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    fn new() -> Self {
        let given = env::var("WHEELLOCK_SEED").ok();
        let seed = given.map_or_else(fresh_seed, |seed| seed.parse().unwrap());
        Self { seed, state: seed }
    }

    /// `SplitMix64`.
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The standard library draws the keys of its hash maps from the operating system.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

// Times to live, as the server counts them.

/// Looks at a key again and again, and finds that its end never moves backwards.
struct Expiry<'a> {
    connection: RawConnection,
    key: &'a str,
    /// The earliest moment at which it may end, by the last look.
    ends: Option<Instant>,
}

impl<'a> Expiry<'a> {
    fn new(server: &Server, key: &'a str) -> Self {
        Self { connection: server.connection(), key, ends: None }
    }

    fn look(&mut self, what: &str) -> Duration {
        let before = now();
        let millis = self.connection.command(&["PTTL", self.key]).integer();
        let after = now();
        let left = Duration::from_millis(u64::try_from(millis).unwrap());
        // Redis rounds to a millisecond.
        let latest = after + left + Duration::from_millis(2);
        if let Some(ends) = self.ends {
            assert!(
                latest >= ends,
                "{what} shortened the time to live by {:?}",
                ends.saturating_duration_since(latest)
            );
        }
        self.ends = Some(before + left);
        left
    }
}

#[test]
fn mixed_holds_never_shorten_a_time_to_live() {
    let server = Server::start();
    let client = connect(&server);
    let (watched, leased) = (client.lock("a"), client.lock("a").with_lease(SECOND * 3));
    let shorter = client.lock("a").with_lease(SECOND / 2);
    let mut expiry = Expiry::new(&server, "a");
    let first = watched.lock().unwrap();
    expiry.look("taking it");
    let second = leased.lock().unwrap();
    assert!(expiry.look("a longer lease") > LEASE * 2);
    let third = shorter.lock().unwrap();
    expiry.look("a shorter lease");
    let fourth = watched.lock().unwrap();
    expiry.look("a watched hold within");
    let renewed = client.stats().renewed;
    wait_until("it is renewed", LIMIT, || {
        expiry.look("a renewal");
        client.stats().renewed >= renewed + 3
    });
    for guard in [third, fourth, second] {
        guard.unlock().unwrap();
        expiry.look("an inner unlock");
    }
    wait_until("only the watchdog's lease is left", LIMIT, || expiry.look("a renewal") < LEASE);
    assert!(first.is_held());
    first.unlock().unwrap();
    assert!(!exists(&server, "a"));

    // The other way round: the longest comes first, and is not renewed.
    let mut expiry = Expiry::new(&server, "a");
    let first = leased.lock().unwrap();
    let second = watched.lock().unwrap();
    expiry.look("a watched hold within");
    second.unlock().unwrap();
    assert!(expiry.look("its unlock") > LEASE * 2);
    first.unlock().unwrap();
}

#[test]
fn two_thirds_of_a_watched_lease_are_always_left() {
    // What a busy machine may be late. Less than the third that would be missing of the shortest
    // lease.
    let slack = Duration::from_millis(800);
    let server = Server::start();
    let leases = [3, 30, 60].map(Duration::from_secs);
    let clients = leases.map(|lease| {
        let client = connect_with_lease(&server.url(), lease);
        (lease, client.clone(), client.lock(&format!("{lease:?}")))
    });
    let guards: Vec<_> = clients.iter().map(|(_, _, lock)| lock.lock().unwrap()).collect();
    let mut connection = server.connection();
    let mut left = |guard: &LockGuard| {
        let millis = connection.command(&["PTTL", &guard.name()]).integer();
        Duration::from_millis(u64::try_from(millis).unwrap())
    };
    for (guard, lease) in guards.iter().zip(leases) {
        let left = left(guard);
        assert!(left <= lease && left + slack >= lease, "{left:?} of {lease:?}");
    }
    // Until the default lease was renewed once, and the short one ten times.
    let start = now();
    wait_until("the leases are renewed", LIMIT, || {
        for (guard, lease) in guards.iter().zip(leases) {
            let left = left(guard);
            // A renewal is sent a little before its third is over.
            assert!(left + slack >= lease * 2 / 3, "{left:?} of {lease:?}");
        }
        clients[1].1.stats().renewed == 1 && clients[0].1.stats().renewed >= 10
    });
    let took = since(start);
    assert!(took <= SECOND * 12, "{took:?}");
    assert_eq!(clients[2].1.stats().renewed, 0);
    drop(guards);
    wait_until("nothing is left", LIMIT, || server.size() == 0);
}
