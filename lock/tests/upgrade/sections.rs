//! Sections under each kind of lock, and a check that the sections exclude each other. Two builds of
//! the library compile this file, so the code uses only the interface that both builds have.
//!
//! A thread that is inside has a file in a folder that both programs share. So the check does not
//! depend on the locks that are checked.

use std::convert::Infallible;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::iter;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use wheellock::RunOutcome::{Ran, RanAlready, RunningElsewhere};
use wheellock::{AnyLock, Client, Clock, Guard, Lock, Semaphore, SystemClock};

/// Longer than a test takes: no hold expires in it.
const LEASE: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(100);

/// The threads of each program, and how often each is inside.
pub(crate) const THREADS: usize = 2;
pub(crate) const TIMES: usize = 100;

/// How often each leads: whoever resigns lets others go first, for a second.
pub(crate) const TERMS: usize = 5;

/// How many may have a permit in sections, which are not alone under one.
pub(crate) const PERMITS: u32 = 2;

/// How often a lock is handed over, half of them in each direction.
const HAND_OVERS: usize = 10;

/// The parts of the tests.
pub(crate) const SECTIONS: &str = "sections";
pub(crate) const HAND_OVER: &str = "hand_over";

/// Runs a section under one permit: the two builds differ in what an acquire returns.
pub(crate) type UnderPermit = fn(&Semaphore, &mut dyn FnMut());

/// One program's part.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The servers, three for a red lock.
    pub(crate) urls: Vec<String>,
    pub(crate) folder: PathBuf,
    /// One letter for the program, in the list of turns.
    pub(crate) side: char,
    pub(crate) under_permit: UnderPermit,
    /// How many may have a permit.
    pub(crate) permits: u32,
}

impl Program {
    /// Does this part of a test beside the other program.
    pub(crate) fn take_part(&self, part: &str, kind: &str) {
        match part {
            SECTIONS => self.run(kind),
            // With one permit, a release wakes the waiter and nobody else.
            HAND_OVER => Program { permits: 1, ..self.clone() }.hand_over(kind),
            other => panic!("there is no part {other}"),
        }
    }

    /// Is inside so often under this kind of lock.
    fn run(&self, kind: &str) {
        let clients = self.begin();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let clients = &clients;
                scope.spawn(move || self.thread(kind, clients, thread));
            }
        });
    }

    /// Releases for a waiter of the other program, and waits for the other program's release, in
    /// turn. Writes down how long each release took to wake the waiter.
    fn hand_over(&self, kind: &str) {
        let clients = self.begin();
        for round in 0..HAND_OVERS {
            let latch = |what| clients[0].count_down_latch(&format!("{what} {round}"));
            let [held, awaited, owned] = ["held", "awaited", "owned"].map(latch);
            if (round % 2 == 0) == (self.side == 't') {
                let mut released = now();
                self.hold(kind, &clients, 0, &mut || {
                    held.count_down().unwrap();
                    assert!(awaited.wait_for(LIMIT).unwrap(), "nobody waits");
                    released = now();
                });
                assert!(owned.wait_for(LIMIT).unwrap(), "the waiter sleeps on");
                let micros = (now() - released).as_micros();
                self.append(TIMES_OF_HAND_OVERS, format!("{micros}\n").as_bytes());
            } else {
                assert!(held.wait_for(LIMIT).unwrap(), "the other program does not hold it");
                thread::scope(|scope| {
                    scope.spawn(|| {
                        self.hold(kind, &clients, 0, &mut || owned.count_down().unwrap());
                    });
                    let deadline = now() + LIMIT;
                    while clients[0].stats().waiters == 0 {
                        assert!(now() < deadline, "the waiter does not wait");
                        thread::yield_now();
                    }
                    awaited.count_down().unwrap();
                });
            }
        }
    }

    /// Connects, and waits until the other program has done so.
    fn begin(&self) -> Vec<Client> {
        let clients: Vec<Client> = self.urls.iter().map(|url| connect(url)).collect();
        let latch = |name: &str, count| {
            let latch = clients[0].count_down_latch(name);
            latch.try_set_count(count).unwrap();
            latch
        };
        for round in 0..HAND_OVERS {
            for what in ["held", "awaited", "owned"] {
                latch(&format!("{what} {round}"), 1);
            }
        }
        let begin = latch("begin", 2);
        begin.count_down().unwrap();
        assert!(begin.wait_for(LIMIT).unwrap(), "the other program has not begun");
        clients
    }

    fn thread(&self, kind: &str, clients: &[Client], thread: usize) {
        let client = &clients[0];
        match kind {
            "read_write" => self.read_write(client, thread),
            "semaphore" | "permits" => {
                repeat(|| self.hold(kind, clients, thread, &mut || self.one_of_some(thread)));
            }
            "leader" => self.lead(client),
            "job" => self.run_jobs(client),
            _ => repeat(|| self.hold(kind, clients, thread, &mut || self.alone())),
        }
    }

    /// Runs a section under this kind of lock. Of permits there are as many as may be inside.
    fn hold(&self, kind: &str, clients: &[Client], thread: usize, section: &mut dyn FnMut()) {
        let client = &clients[0];
        match kind {
            "lock" => exclusive(&client.lock("a"), section),
            "non_reentrant" => exclusive(&client.non_reentrant_lock("a"), section),
            "fenced" => exclusive(&client.fenced_lock("a"), section),
            "spin" => exclusive(&client.spin_lock("a"), section),
            "simple" => exclusive(&client.simple_lock("a"), section),
            "fair" => exclusive(&client.fair_lock("a"), section),
            "non_reentrant_fair" => exclusive(&client.non_reentrant_fair_lock("a"), section),
            "owner" => {
                let owner = format!("{}{thread}", self.side);
                exclusive(&client.lock("a").with_owner(&owner), section);
            }
            "write" => exclusive(&client.read_write_lock("a").write_lock(), section),
            "multi" => {
                let (one, other) = (client.lock("a"), client.fair_lock("b"));
                let locks: [&dyn AnyLock; 2] = [&one, &other];
                let guard = client.multi_lock(&locks).try_lock_for(LIMIT).unwrap().unwrap();
                section();
                guard.unlock().unwrap();
            }
            "red" => {
                let lock = Client::red_lock(clients, "a").with_server_timeout(LIMIT / 10);
                let guard = lock.try_lock_for(LIMIT).unwrap().unwrap();
                section();
                guard.unlock().unwrap();
            }
            "semaphore" => {
                let semaphore = client.semaphore("a");
                semaphore.try_set_permits(self.permits).unwrap();
                (self.under_permit)(&semaphore, section);
            }
            "permits" => {
                let semaphore = client.expirable_semaphore("a").watched();
                semaphore.try_set_permits(self.permits).unwrap();
                let permit = semaphore.try_acquire_for(LIMIT).unwrap().unwrap();
                section();
                permit.release().unwrap();
            }
            other => panic!("there is no kind {other}"),
        }
    }

    /// Every fourth section writes.
    fn read_write(&self, client: &Client, thread: usize) {
        let lock = client.read_write_lock("a");
        let mut section = thread;
        repeat(|| {
            section += 1;
            if section.is_multiple_of(4) {
                let guard = lock.write_lock().try_lock_for(LIMIT).unwrap().unwrap();
                self.alone();
                guard.unlock().unwrap();
            } else {
                let guard = lock.read_lock().try_lock_for(LIMIT).unwrap().unwrap();
                let reader = self.enter(&format!("reader-{}-{thread}", self.side));
                assert!(!self.folder.join(ALONE).exists(), "a reader beside a writer");
                fs::remove_file(reader).unwrap();
                guard.unlock().unwrap();
            }
        });
    }

    /// Each thread leads until it has had its terms.
    fn lead(&self, client: &Client) {
        let campaign = client.leader_election("a").campaign().unwrap();
        for _ in 0..TERMS {
            let term = campaign.next_term().unwrap();
            self.alone();
            term.resign().unwrap();
        }
        campaign.stop();
    }

    /// Each slot runs once, whoever asks for it.
    fn run_jobs(&self, client: &Client) {
        let job = client.job("a");
        let mut slot = 0;
        repeat(|| {
            slot += 1;
            let outcome = job.run_once(&slot.to_string(), |_run| {
                self.enter(&format!("ran-{slot}"));
                self.take_turn();
                Ok::<_, Infallible>(())
            });
            let (Ran(()) | RanAlready | RunningElsewhere) = outcome.unwrap() else {
                panic!("slot {slot} has not run")
            };
        });
    }

    /// A section with nobody else inside.
    fn alone(&self) {
        let inside = self.enter(ALONE);
        let readers = self.inside("reader-");
        assert_eq!(readers, 0, "readers beside a section of its own");
        self.take_turn();
        fs::remove_file(inside).unwrap();
    }

    fn take_turn(&self) {
        self.append(TURNS, &[self.side as u8]);
    }

    fn append(&self, file: &str, text: &[u8]) {
        let file = OpenOptions::new().create(true).append(true).open(self.folder.join(file));
        file.unwrap().write_all(text).unwrap();
    }

    /// A section with others inside, up to the number of permits.
    fn one_of_some(&self, thread: usize) {
        let permit = self.enter(&format!("permit-{}-{thread}", self.side));
        let inside = self.inside("permit-");
        assert!(inside <= self.permits as usize, "{inside} have a permit");
        fs::remove_file(permit).unwrap();
    }

    /// Makes a file, which must not be there.
    fn enter(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        if let Err(error) = File::create_new(&path) {
            panic!("{name}, side {}: somebody else is inside: {error}", self.side);
        }
        path
    }

    fn inside(&self, prefix: &str) -> usize {
        let names = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
    }
}

/// Who is inside alone.
const ALONE: &str = "alone";

/// The file of the sides of all sections that were alone, and of all jobs, in order.
pub(crate) const TURNS: &str = "turns";

/// The file of how many microseconds each hand-over took.
pub(crate) const TIMES_OF_HAND_OVERS: &str = "times";

fn repeat(section: impl FnMut()) {
    iter::repeat_with(section).take(TIMES).for_each(drop);
}

fn exclusive<G: Guard>(lock: &Lock<G>, section: &mut dyn FnMut()) {
    let guard = lock.try_lock_for(LIMIT).unwrap().unwrap();
    section();
    drop(guard);
}

fn now() -> Instant {
    SystemClock.now()
}

fn connect(url: &str) -> Client {
    Client::builder().url(url).watchdog_lease(LEASE).build().unwrap()
}
