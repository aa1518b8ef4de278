//! A lock on a majority of servers is one on both sides, also when a minority of them is dead.

use std::thread;
use std::time::Duration;

use wheellock::{Client, RedLock};
use wheellock_fixture::{RawConnection, Reply, Server};

use crate::peer::Peer;
use crate::shared::{alone, fresh, start};

/// Three servers, and both sides on all of them.
struct World {
    servers: [Server; 3],
    java: Peer,
    rust: RedLock,
    /// The lock's name, on each of them.
    name: String,
    /// As the Java program is told.
    in_java: String,
}

impl World {
    fn start() -> Self {
        let servers = [Server::start(), Server::start(), Server::start()];
        let name = fresh("red");
        let clients = servers.each_ref().map(|server| {
            let timeout = Duration::from_millis(500);
            Client::builder().url(&server.url()).command_timeout(timeout).build().unwrap()
        });
        Self {
            java: Peer::start(&["timeout=500", "retryAttempts=0"], &servers.each_ref()),
            rust: RedLock::new(&clients, &name),
            in_java: format!("{name},{name}@1,{name}@2"),
            name,
            servers,
        }
    }

    /// Whoever holds it on one side keeps out the other, and hands over to it.
    fn assert_excludes(&self) {
        let java = self.java.thread();
        let held = self.rust.lock().unwrap();
        assert_eq!(java.call("red", &self.in_java, "tryLock"), "false");
        assert_eq!(java.call("red", &self.in_java, "tryLock wait=300 lease=20000"), "false");
        assert!(held.is_held());
        held.unlock().unwrap();

        assert_eq!(java.call("red", &self.in_java, "tryLock wait=5000 lease=20000"), "true");
        assert!(self.rust.try_lock().unwrap().is_none());
        assert!(self.rust.try_lock_for(Duration::from_millis(300)).unwrap().is_none());
        java.call("red", &self.in_java, "unlock");
        let held = self.rust.try_lock_for(Duration::from_secs(5)).unwrap().unwrap();
        held.unlock().unwrap();
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests builds it"]
fn a_red_lock_of_one_side_keeps_out_the_other_with_all_servers_and_with_two_of_three() {
    let _alone = alone();
    let world = World::start();
    world.assert_excludes();
    // One that is held by somebody else is a minority too.
    let other = world.java.thread();
    other.call("lock", &format!("{}@1", world.name), "lock lease=60000");
    world.assert_excludes();
    other.call("lock", &format!("{}@1", world.name), "unlock");
    world.servers[2].kill();
    world.assert_excludes();
    // Two of three are a majority.
    let other = world.java.thread();
    other.call("lock", &format!("{}@1", world.name), "lock lease=60000");
    assert!(world.rust.try_lock().unwrap().is_none());
    assert_eq!(world.java.thread().call("red", &world.in_java, "tryLock"), "false");
}

#[test]
#[ignore = "needs the Java program: ./run-tests builds it"]
fn increments_of_both_sides_under_a_red_lock_all_count() {
    /// How often each thread counts.
    const TIMES: usize = 25;
    let _alone = alone();
    let world = World::start();
    let counter = fresh("counter");
    let operation = format!("count counter={counter} times={TIMES} wait=5000 lease=20000");
    let counting = [(); 2].map(|()| world.java.thread().send("red", &world.in_java, &operation));
    thread::scope(|scope| {
        for _ in 0..2 {
            start(scope, || {
                let mut connection = RawConnection::open(world.servers[0].address()).unwrap();
                for _ in 0..TIMES {
                    let held = world.rust.lock().unwrap();
                    let count: usize = match connection.command(&["GET", &counter]) {
                        Reply::Nil => 0,
                        reply => reply.text().parse().unwrap(),
                    };
                    connection.command(&["SET", &counter, &(count + 1).to_string()]);
                    held.unlock().unwrap();
                }
            });
        }
    });
    for counted in counting {
        assert_eq!(counted.value(), TIMES.to_string());
    }
    assert_eq!(world.servers[0].command(&["GET", &counter]).text(), (4 * TIMES).to_string());
}
