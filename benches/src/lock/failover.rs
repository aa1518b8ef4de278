//! A failover: from the promotion of the new master until a waiter owns the lock there.

use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock::Client;
use wheellock_fixture::{Reply, Sentinels, Server, wait_until};

use crate::harness::Contender;
use crate::harness::child::Child;
use crate::harness::clock::{now, sleep};
use crate::harness::java::JavaProgram;
use crate::lock::raw::channel;

/// No step of a failover takes this long.
const LIMIT: Duration = Duration::from_secs(60);
/// How exactly the time of the promotion is known.
const POLL: Duration = Duration::from_micros(200);
/// How often the release is published after the promotion: a message without a subscriber is lost.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(2);

/// What replaces the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A sentinel is told to replace it.
    Command,
    /// It is killed.
    Kill,
}

/// The floor is a failover until the first sentinel names the new master. With it are this crate
/// and, where there is a JDK, Redisson; or why Redisson cannot be measured.
#[must_use]
pub fn failovers(sentinels: &Rc<Sentinels>, cause: Cause) -> (Vec<Contender>, Option<String>) {
    let contender = |name, mut waiter: Waiter| {
        let sentinels = Rc::clone(sentinels);
        Contender::new(name, move || fail_over(name, &sentinels, cause, &mut waiter))
    };
    let own = Waiter::own(&sentinels.url(), "bench:own");
    let mut all = vec![floor(sentinels, cause), contender("wheellock", own)];
    match Waiter::redisson(sentinels, "bench:java") {
        Ok(waiter) => {
            all.push(contender("Redisson 4.7", waiter));
            (all, None)
        }
        Err(reason) => (all, Some(reason)),
    }
}

fn floor(sentinels: &Rc<Sentinels>, cause: Cause) -> Contender {
    let sentinels = Rc::clone(sentinels);
    Contender::new("a sentinel says so", move || {
        sentinels.wait_until_all_is_well();
        let new = *sentinels.replicas().first().expect("there is a replica");
        let promoted = promote(&sentinels, cause);
        let port = new.address().port().to_string();
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::NAME];
        let names_it = |sentinel: &Server| sentinel.command(&ask).texts()[1] == port;
        while !sentinels.sentinels().iter().any(names_it) {
            sleep(POLL);
        }
        let known = now();
        revive(&sentinels);
        known - promoted
    })
}

fn fail_over(name: &str, sentinels: &Sentinels, cause: Cause, waiter: &mut Waiter) -> Duration {
    sentinels.wait_until_all_is_well();
    let (old, lock) = (sentinels.master(), waiter.lock);
    let new = *sentinels.replicas().first().expect("there is a replica");
    // A release that failed may have left the waiter's own hold, which it would nest instead of
    // waiting.
    old.command(&["DEL", lock]);
    old.command(&["HSET", lock, "another-owner:1", "1"]);
    old.command(&["PEXPIRE", lock, "600000"]);
    waiter.begin();
    let exists = || new.command(&["EXISTS", lock]).integer() == 1;
    wait_until(&format!("the replica knows the lock of {name}"), LIMIT, exists);
    // Redisson subscribes at the replica.
    let waits = || has_subscriber(old, lock) || has_subscriber(new, lock);
    wait_until(&format!("{name} waits"), LIMIT, waits);
    sleep(Duration::from_millis(100));
    let promoted = promote(sentinels, cause);
    wait_until("the lock is free", LIMIT, || new.try_command(&["DEL", lock]).is_ok());
    let owned = loop {
        // A message that is lost is followed by another.
        new.try_command(&["PUBLISH", channel(lock).as_str(), "0"]).ok();
        if let Some(owned) = waiter.owned_within(BETWEEN_MESSAGES) {
            break owned;
        }
        assert!(now() - promoted < LIMIT, "{name} does not acquire the lock");
    };
    revive(sentinels);
    owned.saturating_duration_since(promoted)
}

/// Replaces the master. Returns when the replica says that it is one.
fn promote(sentinels: &Sentinels, cause: Cause) -> Instant {
    let (old, replicas) = (sentinels.master(), sentinels.replicas());
    let new = *replicas.first().expect("there is a replica");
    match cause {
        Cause::Kill => old.kill(),
        Cause::Command => wait_until("a sentinel begins a failover", LIMIT, || {
            let command = ["SENTINEL", "FAILOVER", Sentinels::NAME];
            sentinels.sentinels().iter().any(|sentinel| !sentinel.command(&command).is_error())
        }),
    }
    // Each command has a new connection, as a sentinel closes those of a server that it promotes.
    while !matches!(new.try_command(&["ROLE"]), Ok(Reply::Array(role)) if role[0].text() == "master")
    {
        sleep(POLL);
    }
    now()
}

fn revive(sentinels: &Sentinels) {
    sentinels.servers().iter().filter(|server| !server.is_running()).for_each(Server::start_again);
}

fn has_subscriber(server: &Server, lock: &str) -> bool {
    let reply = server.command(&["PUBSUB", "NUMSUB", &channel(lock)]);
    reply.array().get(1).is_some_and(|subscribers| subscribers.integer() > 0)
}

/// Waits for a lock when it is told to, and reports when it owns it.
struct Waiter {
    lock: &'static str,
    kind: WaiterKind,
}

enum WaiterKind {
    /// A thread of this process, with this crate.
    Thread(Sender<()>, Receiver<Instant>),
    /// A Java process, with Redisson.
    Process(Child),
}

impl Waiter {
    fn own(url: &str, lock: &'static str) -> Self {
        let client = Client::builder().url(url).command_timeout(LIMIT).build();
        let handle = client.expect("the master is there").lock(lock);
        let (begin, requests) = bounded(1);
        let (owns, owned) = bounded(1);
        let wait = move || {
            for () in requests {
                let guard = handle.lock().expect("the lock becomes free");
                owns.send(now()).ok();
                // The new master may be replaced meanwhile.
                guard.unlock().ok();
            }
        };
        // It ends with its channels.
        drop(thread::Builder::new().name("bench-waiter".to_owned()).spawn(wait));
        Self { lock, kind: WaiterKind::Thread(begin, owned) }
    }

    fn redisson(sentinels: &Sentinels, lock: &'static str) -> Result<Self, String> {
        let addresses: Vec<String> =
            sentinels.addresses().iter().map(ToString::to_string).collect();
        let mut command = JavaProgram::build("redisson")?.command("RedissonFailover", "512m");
        command.args([Sentinels::NAME, lock]).arg(addresses.join(","));
        let mut child = Child::start(&mut command).map_err(|error| error.to_string())?;
        // Its first line says that it is ready.
        child.line(LIMIT).map_err(|_| "Redisson does not find the master".to_owned())?;
        Ok(Self { lock, kind: WaiterKind::Process(child) })
    }

    fn begin(&mut self) {
        match &mut self.kind {
            WaiterKind::Thread(begin, _) => begin.send(()).expect("the waiter is there"),
            WaiterKind::Process(child) => child.send("once").expect("the Java process runs"),
        }
    }

    fn owned_within(&mut self, timeout: Duration) -> Option<Instant> {
        match &mut self.kind {
            WaiterKind::Thread(_, owned) => owned.recv_timeout(timeout).ok(),
            WaiterKind::Process(child) => child.timed_line(timeout).ok().map(|(at, _)| at),
        }
    }
}
