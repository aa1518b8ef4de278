//! What sentinels and a cluster cost: an uncontended pair beside the same server addressed directly; and a failover, from
//! the promotion of the new master until a waiter owns the lock there.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use wheellock::Client;
use wheellock_fixture::{Cluster, Reply, Sentinels, Server, wait_until};

use crate::clock::{now, pause};
use crate::contender::Contender;
use crate::maven;
use crate::raw::channel;

/// This crate at the master's own address.
pub const DIRECT: &str = "wheellock, one server";
/// This crate at the same server, as sentinels say.
pub const SENTINEL: &str = "wheellock, sentinel";

/// This crate at the same server, as its cluster says.
pub const CLUSTER: &str = "wheellock, cluster";

/// No step of a failover takes this long on a machine that works.
const LIMIT: Duration = Duration::from_secs(60);
/// How exactly the moment of the promotion is known.
const LOOK: Duration = Duration::from_micros(200);
/// After the promotion somebody says so often that the lock is free: a message that nobody hears is lost.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(2);

/// One server addressed directly and through sentinels; the first is the floor.
#[must_use]
pub fn behind_sentinels(sentinels: &Sentinels) -> Vec<Contender> {
    vec![
        pair(DIRECT, &sentinels.master().url(), "bench:direc"),
        pair(SENTINEL, &sentinels.url(), "bench:senti"),
    ]
}

/// The node of a cluster that has but one, addressed directly and as a cluster; the first is the floor.
#[must_use]
pub fn in_a_cluster(cluster: &Cluster) -> Vec<Contender> {
    let node = cluster.nodes().swap_remove(0);
    vec![pair(DIRECT, &node.url(), "bench:direc"), pair(CLUSTER, &cluster.url(), "bench:clust")]
}

fn pair(name: &'static str, url: &str, key: &str) -> Contender {
    let client = Client::connect(url).expect("the server is there");
    let lock = client.lock(key);
    Contender::timed(name, move || {
        let guard = lock.lock().expect("nobody else wants it");
        guard.unlock().expect("it was held");
    })
}

/// What ends the reign of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A sentinel is told to replace it.
    Told,
    /// It is killed.
    Killed,
}

/// A failover until a sentinel says so, which is the floor; until a waiter of this crate owns the lock; and, where there
/// is a JDK, until one of Redisson's does, or why that is not there.
#[must_use]
pub fn failovers(sentinels: &Rc<Sentinels>, end: End) -> (Vec<Contender>, Option<String>) {
    let own = own_waiter(&sentinels.url(), "bench:own");
    let mut all = vec![floor(sentinels, end), contender("wheellock", sentinels, end, own)];
    let redisson = redisson_waiter(sentinels, "bench:java");
    let missing =
        redisson.map(|waiter| all.push(contender("Redisson 3.52", sentinels, end, waiter)));
    (all, missing.err())
}

/// Who waits for a lock when he is told to, and says when he has it.
struct Waiter {
    lock: &'static str,
    wait: Box<dyn FnMut()>,
    owned: Receiver<Instant>,
}

fn contender(
    name: &'static str,
    sentinels: &Rc<Sentinels>,
    end: End,
    mut waiter: Waiter,
) -> Contender {
    let sentinels = Rc::clone(sentinels);
    Contender::new(name, move || fail_over(name, &sentinels, end, &mut waiter))
}

fn floor(sentinels: &Rc<Sentinels>, end: End) -> Contender {
    let sentinels = Rc::clone(sentinels);
    Contender::new("a sentinel says so", move || {
        sentinels.wait_until_all_is_well();
        let new = *sentinels.replicas().first().expect("there is a replica");
        let promoted = promote(&sentinels, end);
        let port = new.address().port().to_string();
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::NAME];
        while !sentinels
            .sentinels()
            .iter()
            .any(|sentinel| sentinel.command(&ask).texts()[1] == port)
        {
            pause(LOOK);
        }
        let known = now();
        revive(&sentinels);
        known - promoted
    })
}

fn fail_over(name: &str, sentinels: &Sentinels, end: End, waiter: &mut Waiter) -> Duration {
    sentinels.wait_until_all_is_well();
    let (old, lock) = (sentinels.master(), waiter.lock);
    let new = *sentinels.replicas().first().expect("there is a replica");
    // A release that went astray may have left the waiter's own hold, and then he would nest it and not wait.
    old.command(&["DEL", lock]);
    old.command(&["HSET", lock, "somebody:1", "1"]);
    old.command(&["PEXPIRE", lock, "600000"]);
    (waiter.wait)();
    let exists = || new.command(&["EXISTS", lock]).integer() == 1;
    wait_until(&format!("the replica knows the lock of {name}"), LIMIT, exists);
    // Redisson listens at the replica.
    let waits = || listens(old, lock) || listens(new, lock);
    wait_until(&format!("{name} waits"), LIMIT, waits);
    pause(Duration::from_millis(100));
    let promoted = promote(sentinels, end);
    wait_until("the lock is free", LIMIT, || new.try_command(&["DEL", lock]).is_ok());
    let owned = loop {
        // It may be cut off, and the next one is not.
        new.try_command(&["PUBLISH", channel(lock).as_str(), "0"]).ok();
        if let Ok(owned) = waiter.owned.recv_timeout(BETWEEN_MESSAGES) {
            break owned;
        }
        assert!(now() - promoted < LIMIT, "the waiter does not get the lock");
    };
    revive(sentinels);
    owned.saturating_duration_since(promoted)
}

/// Ends the reign of the master. Answers when the replica says that it is one.
fn promote(sentinels: &Sentinels, end: End) -> Instant {
    let (old, replicas) = (sentinels.master(), sentinels.replicas());
    let new = *replicas.first().expect("there is a replica");
    match end {
        End::Killed => old.kill(),
        End::Told => wait_until("a sentinel begins a failover", LIMIT, || {
            let told = ["SENTINEL", "FAILOVER", Sentinels::NAME];
            sentinels.sentinels().iter().any(|sentinel| !sentinel.command(&told).is_error())
        }),
    }
    // On a connection for each command, as a sentinel ends those to a server that it promotes.
    while !matches!(new.try_command(&["ROLE"]), Ok(Reply::Array(role)) if role[0].text() == "master")
    {
        pause(LOOK);
    }
    now()
}

fn revive(sentinels: &Sentinels) {
    sentinels.servers().iter().filter(|server| !server.is_running()).for_each(Server::start_again);
}

fn listens(server: &Server, lock: &str) -> bool {
    let reply = server.command(&["PUBSUB", "NUMSUB", &channel(lock)]);
    reply.array().get(1).is_some_and(|listeners| listeners.integer() > 0)
}

fn own_waiter(url: &str, lock: &'static str) -> Waiter {
    let client = Client::builder().url(url).command_timeout(LIMIT).build();
    let handle = client.expect("the master is there").lock(lock);
    let (waits, told) = bounded::<()>(1);
    let (owns, owned) = bounded(1);
    let wait = move || {
        for () in told {
            let guard = handle.lock().expect("it becomes free");
            owns.send(now()).ok();
            // The new master may fall again meanwhile.
            guard.unlock().ok();
        }
    };
    // It ends with its channels.
    drop(thread::Builder::new().name("bench-waiter".to_owned()).spawn(wait));
    Waiter { lock, wait: Box::new(move || waits.send(()).expect("the waiter is there")), owned }
}

fn redisson_waiter(sentinels: &Sentinels, lock: &'static str) -> Result<Waiter, String> {
    let class_path = maven::build("redisson")?;
    let addresses: Vec<String> = sentinels.addresses().iter().map(ToString::to_string).collect();
    let mut child = Command::new("java")
        .args(["-Xmx512m", "-cp", &class_path, "RedissonFailover", Sentinels::NAME, lock])
        .arg(addresses.join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("Java does not run: {error}"))?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("Java has no input or output".to_owned());
    };
    let (owns, owned) = bounded(1);
    let (ready, is_ready) = bounded(1);
    let read = move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let told = now();
            let sent = match line.as_str() {
                "ready" => ready.send(()).is_ok(),
                "owned" => owns.send(told).is_ok(),
                _ => true,
            };
            if !sent {
                break;
            }
        }
    };
    drop(thread::Builder::new().name("bench-java".to_owned()).spawn(read));
    is_ready.recv_timeout(LIMIT).map_err(|_| "Redisson does not find the master".to_owned())?;
    let mut program = Program(child);
    let wait = move || {
        assert!(program.0.try_wait().is_ok_and(|ended| ended.is_none()), "Java has ended");
        writeln!(input, "once").expect("the program reads");
    };
    Ok(Waiter { lock, wait: Box::new(wait), owned })
}

/// It ends with its waiter.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Nothing is left of it that would matter.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
