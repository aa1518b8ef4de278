//! A lock on a majority of servers is the same on both sides, also with a dead minority.

use std::time::Duration;

use wheellock::{Client, RedGuard, RedLock};
use wheellock_fixture::Server;

use crate::child::setting;
use crate::counting::{Counting, TIMES, count_in_threads};
use crate::peer::Peer;
use crate::shared::{alone, fresh};

/// Three servers, and both sides on all of them.
struct RedLockServers {
    servers: [Server; 3],
    java: Peer,
    rust: RedLock,
    /// The lock's name, on each of them.
    name: String,
    /// As the Java program is told.
    in_java: String,
}

impl RedLockServers {
    fn start() -> Self {
        let servers = [Server::start(), Server::start(), Server::start()];
        let name = fresh("red");
        let clients = servers.each_ref().map(|server| {
            let timeout = Duration::from_millis(500);
            Client::builder().url(&server.url()).command_timeout(timeout).build().unwrap()
        });
        Self {
            java: Peer::start(&["timeout=500", "retryAttempts=0"], &servers.each_ref()),
            rust: Client::red_lock(&clients, &name),
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
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn red_lock_excludes_across_java_and_rust_with_server_majority() {
    let _alone = alone();
    let setup = RedLockServers::start();
    setup.assert_excludes();
    // A member held by another client is a minority too.
    let other = setup.java.thread();
    other.call("lock", &format!("{}@1", setup.name), "lock lease=60000");
    setup.assert_excludes();
    other.call("lock", &format!("{}@1", setup.name), "unlock");
    setup.servers[2].kill();
    setup.assert_excludes();
    // Two of three are a majority.
    let other = setup.java.thread();
    other.call("lock", &format!("{}@1", setup.name), "lock lease=60000");
    assert!(setup.rust.try_lock().unwrap().is_none());
    assert_eq!(setup.java.thread().call("red", &setup.in_java, "tryLock"), "false");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn red_lock_counts_all_increments_of_java_and_rust_processes() {
    let _alone = alone();
    let servers = [Server::start(), Server::start(), Server::start()];
    let [first, second] = [(); 2].map(|()| Peer::start(&[], &servers.each_ref()));
    let name = fresh("red");
    let in_java = format!("{name},{name}@1,{name}@2");
    let urls = servers.each_ref().map(Server::url);
    let counting = Counting {
        server: &servers[0],
        java: [&first, &second],
        kind: "red",
        name: &in_java,
        times: TIMES,
        role: "count under a majority",
        settings: &[("SERVER", &urls[0]), ("SERVERS", &urls.join(",")), ("NAME", &name)],
    };
    counting.assert_all_count();
    for server in &servers {
        assert_eq!(server.command(&["EXISTS", &name]).integer(), 0, "a part is left behind");
    }
}

/// In a child process: what one of ours does.
pub(crate) fn count_under_a_majority() {
    let clients: Vec<Client> =
        setting("SERVERS").split(',').map(|url| Client::connect(url).unwrap()).collect();
    let red = Client::red_lock(&clients, &setting("NAME"));
    count_in_threads(&setting("SERVER"), || red.lock(), RedGuard::unlock);
}
