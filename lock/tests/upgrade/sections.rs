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
use std::time::Duration;

use wheellock::RunOutcome::{Ran, RanAlready, RunningElsewhere};
use wheellock::{AnyLock, Client, Guard, Lock, Semaphore};

/// Longer than a test takes: no hold expires in it.
const LEASE: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(100);

/// The threads of each program, and how often each is inside.
pub(crate) const THREADS: usize = 2;
pub(crate) const TIMES: usize = 100;

/// How often each leads: whoever resigns lets others go first, for a second.
pub(crate) const TERMS: usize = 5;

/// How many may have a permit.
const PERMITS: u32 = 2;

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
}

impl Program {
    /// Is inside so often under this kind of lock, beside the other program.
    pub(crate) fn run(&self, kind: &str) {
        let clients: Vec<Client> = self.urls.iter().map(|url| connect(url)).collect();
        let begin = clients[0].count_down_latch("begin");
        begin.try_set_count(2).unwrap();
        begin.count_down().unwrap();
        assert!(begin.wait_for(LIMIT).unwrap(), "the other program has not begun");
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let clients = &clients;
                scope.spawn(move || self.thread(kind, clients, thread));
            }
        });
    }

    fn thread(&self, kind: &str, clients: &[Client], thread: usize) {
        let client = &clients[0];
        match kind {
            "lock" => self.exclusive(&client.lock("a")),
            "non_reentrant" => self.exclusive(&client.non_reentrant_lock("a")),
            "fenced" => self.exclusive(&client.fenced_lock("a")),
            "spin" => self.exclusive(&client.spin_lock("a")),
            "simple" => self.exclusive(&client.simple_lock("a")),
            "fair" => self.exclusive(&client.fair_lock("a")),
            "non_reentrant_fair" => self.exclusive(&client.non_reentrant_fair_lock("a")),
            "owner" => {
                let owner = format!("{}{thread}", self.side);
                self.exclusive(&client.lock("a").with_owner(&owner));
            }
            "read_write" => self.read_write(client, thread),
            "multi" => {
                let (one, other) = (client.lock("a"), client.fair_lock("b"));
                let locks: [&dyn AnyLock; 2] = [&one, &other];
                let lock = client.multi_lock(&locks);
                repeat(|| {
                    let guard = lock.try_lock_for(LIMIT).unwrap().unwrap();
                    self.alone();
                    guard.unlock().unwrap();
                });
            }
            "red" => {
                let lock = Client::red_lock(clients, "a").with_server_timeout(LIMIT / 10);
                repeat(|| {
                    let guard = lock.try_lock_for(LIMIT).unwrap().unwrap();
                    self.alone();
                    guard.unlock().unwrap();
                });
            }
            "semaphore" => {
                let semaphore = client.semaphore("a");
                semaphore.try_set_permits(PERMITS).unwrap();
                repeat(|| (self.under_permit)(&semaphore, &mut || self.one_of_some(thread)));
            }
            "permits" => {
                let semaphore = client.expirable_semaphore("a").watched();
                semaphore.try_set_permits(PERMITS).unwrap();
                repeat(|| {
                    let permit = semaphore.try_acquire_for(LIMIT).unwrap().unwrap();
                    self.one_of_some(thread);
                    permit.release().unwrap();
                });
            }
            "leader" => self.lead(client),
            "job" => self.run_jobs(client),
            other => panic!("there is no kind {other}"),
        }
    }

    fn exclusive<G: Guard>(&self, lock: &Lock<G>) {
        repeat(|| {
            let guard = lock.try_lock_for(LIMIT).unwrap().unwrap();
            self.alone();
            drop(guard);
        });
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
        let turns = OpenOptions::new().create(true).append(true).open(self.folder.join(TURNS));
        turns.unwrap().write_all(&[self.side as u8]).unwrap();
    }

    /// A section with others inside, up to the number of permits.
    fn one_of_some(&self, thread: usize) {
        let permit = self.enter(&format!("permit-{}-{thread}", self.side));
        let inside = self.inside("permit-");
        assert!(inside <= PERMITS as usize, "{inside} have a permit");
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

fn repeat(section: impl FnMut()) {
    iter::repeat_with(section).take(TIMES).for_each(drop);
}

fn connect(url: &str) -> Client {
    Client::builder().url(url).watchdog_lease(LEASE).build().unwrap()
}
