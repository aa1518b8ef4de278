//! A process that ends right after it has dropped a guard has released the lock: the kernel has the
//! bytes.
//!
//! Each run is a process of its own, this test program with a role in the environment. `EXIT_RUNS`
//! is how often each test runs it: 200 for a proof, a few in every other run.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

use std::env;
use std::io::{self, BufRead, Write};
use std::process::{self, Command};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use wheellock::{Client, ClientBuilder};
#[cfg(feature = "tls")]
use wheellock_fixture::{Certificates, ClientCertificates};
use wheellock_fixture::{Proxy, Server, TestProcess, wait_until};

use crate::common::SOON;

const ROLE: &str = "WHEELLOCK_EXIT_ROLE";
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a lock would stay that was not released: longer than any wait for it.
const LEASE: Duration = Duration::from_secs(600);
/// So many replies may be unread on one connection.
const MAX_UNREAD: usize = 8;

fn runs() -> usize {
    env::var("EXIT_RUNS").map_or(8, |runs| runs.parse().unwrap())
}

fn ends() -> impl Iterator<Item = &'static str> {
    ["exit", "kill"].into_iter().cycle().take(runs())
}

/// In a child process: takes locks, drops them when it is told to, and ends at once.
#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(role) = env::var(ROLE) else { return };
    let client = builder().watchdog_lease(LEASE).build().unwrap();
    let names: Vec<String> = (0..number("LOCKS")).map(|name| format!("lock {name}")).collect();
    let threads = number("THREADS");
    let started = Barrier::new(threads + 1);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (client, started) = (&client, &started);
            // Its locks have leases of a second, so those that it holds in the end are soon free.
            let lock = client.lock(&format!("busy {thread}"));
            let lock = lock.with_lease(Duration::from_secs(1));
            scope.spawn(move || {
                drop(lock.lock().unwrap());
                started.wait();
                loop {
                    drop(lock.lock().unwrap());
                }
            });
        }
        started.wait();
        // One first, so that the server knows the scripts: what it does not know is sent again.
        drop(client.lock("first").lock().unwrap());
        let guards: Vec<_> = names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
        let others = (0..number("OF_EACH_KIND")).map(|_| one_of_each_kind(&client));
        let others: Vec<_> = others.collect();
        println!("holds");
        io::stdout().flush().unwrap();
        io::stdin().lock().read_line(&mut String::new()).unwrap();
        drop(others);
        for guard in guards {
            assert!(guard.is_held());
            drop(guard);
        }
        end(&role)
    });
}

fn one_of_each_kind(client: &Client) -> impl Sized {
    let (one, other) = (client.lock("lock of two"), client.lock("lock of two more"));
    (
        client.fair_lock("lock fair").lock().unwrap(),
        client.read_write_lock("lock read").read_lock().lock().unwrap(),
        client.simple_lock("lock simple").lock().unwrap(),
        client.expirable_semaphore("permits").acquire_many(2).unwrap(),
        client.multi_lock(&[&one, &other]).lock().unwrap(),
    )
}

fn number(variable: &str) -> usize {
    env::var(variable).map_or(0, |number| number.parse().unwrap())
}

fn end(role: &str) -> ! {
    if role == "kill" {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    }
    process::exit(0)
}

fn builder() -> ClientBuilder {
    let builder = Client::builder().url(&env::var("SERVER").unwrap());
    #[cfg(feature = "tls")]
    if let Ok(authority) = env::var("AUTHORITY") {
        return builder.tls(wheellock::TlsSettings::new().authority_pem(authority));
    }
    builder
}

/// A process that takes `locks` locks, and what it needs to be told to go on.
struct Run {
    process: TestProcess,
    input: process::ChildStdin,
}

impl Run {
    fn start(role: &str, url: &str, locks: usize, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "exits::child_role", "--nocapture", "--test-threads=2"]);
        command.env(ROLE, role).env("SERVER", url).env("LOCKS", locks.to_string());
        command.envs(settings.iter().copied());
        let (process, input, lines) = TestProcess::spawn_for_talk(&mut command);
        let holds = |line: &String| line.contains("holds");
        while !lines.recv_timeout(LIMIT).is_ok_and(|line| holds(&line)) {
            assert!(process.output().len() < 100_000, "{}", process.output());
        }
        Self { process, input }
    }

    fn go_on(&mut self) {
        self.input.write_all(b"go on\n").unwrap();
    }

    fn wait_for_exit(mut self) {
        let code = self.process.wait_for_exit(LIMIT);
        assert!(code == 0 || code == 128 + 9 || code == -9, "{code}: {}", self.process.output());
    }
}

/// Waits until the server has run what was sent to it. What is not free then would be held for the
/// rest of [`LEASE`].
fn wait_until_free(server: &Server, run: usize) {
    wait_until(&format!("every lock is free after run {run}"), SOON, || {
        server.command(&["KEYS", "lock *"]).texts().is_empty()
    });
}

#[test]
fn a_process_that_exits_or_is_killed_after_a_drop_has_released() {
    let server = Server::start();
    for (run, role) in ends().enumerate() {
        let mut child = Run::start(role, &server.url(), 1, &[]);
        child.go_on();
        child.wait_for_exit();
        wait_until_free(&server, run);
    }
}

#[test]
fn process_end_releases_despite_eight_unread_stalled_replies() {
    let server = Server::start();
    for (run, role) in ends().enumerate() {
        let mut child = Run::start(role, &server.url(), MAX_UNREAD, &[]);
        server.pause();
        child.go_on();
        child.wait_for_exit();
        server.resume();
        wait_until_free(&server, run);
    }
}

#[test]
fn process_end_releases_after_server_script_flush() {
    let server = Server::start();
    let permits = Client::connect(&server.url()).unwrap().expirable_semaphore("permits");
    permits.try_set_permits(2).unwrap();
    for (run, role) in ends().enumerate() {
        let mut child = Run::start(role, &server.url(), 2, &[("OF_EACH_KIND", "1")]);
        assert_eq!(permits.available_permits(), Ok(0));
        server.command(&["SCRIPT", "FLUSH"]);
        child.go_on();
        child.wait_for_exit();
        wait_until_free(&server, run);
        wait_until("the permits are back", SOON, || permits.available_permits() == Ok(2));
    }
}

#[test]
fn process_end_with_64_active_threads_releases_dropped_guards() {
    let server = Server::start();
    for (run, role) in ends().enumerate() {
        let mut child = Run::start(role, &server.url(), MAX_UNREAD, &[("THREADS", "64")]);
        child.go_on();
        child.wait_for_exit();
        wait_until_free(&server, run);
    }
}

#[test]
fn a_process_that_ends_behind_a_slow_link_has_released() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    for (run, role) in ends().enumerate() {
        proxy.delay_requests(Duration::ZERO);
        let mut child = Run::start(role, &proxy.url(), MAX_UNREAD, &[]);
        proxy.delay_requests(Duration::from_millis(20));
        proxy.delay_replies(Duration::from_millis(20));
        child.go_on();
        child.wait_for_exit();
        wait_until_free(&server, run);
    }
}

/// The connections to the server.
fn ids(server: &Server) -> Vec<String> {
    let clients = server.command(&["CLIENT", "LIST"]).text();
    clients.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn process_end_releases_after_server_closed_idle_connection() {
    let server = Server::builder().argument("--timeout", "1").start();
    for (run, role) in ends().take(runs().div_ceil(4)).enumerate() {
        let mut child = Run::start(role, &server.url(), 2, &[]);
        let open = ids(&server);
        wait_until("its connections were closed", LIMIT, || {
            let left = ids(&server);
            open.iter().all(|id| !left.contains(id))
        });
        child.go_on();
        child.wait_for_exit();
        wait_until_free(&server, run);
    }
}

#[cfg(feature = "tls")]
#[test]
fn a_process_that_ends_over_tls_has_released() {
    let certificates = Certificates::new();
    let server = Server::builder().tls(&certificates, ClientCertificates::Optional).start();
    let settings = [("AUTHORITY", certificates.authority().text())];
    for (run, role) in ends().enumerate() {
        let stalls = run % 4 == 3;
        // Over TLS one reply may be unread; the next drop waits for it.
        let locks = if stalls { 1 } else { MAX_UNREAD };
        let mut child = Run::start(role, &server.tls_url(), locks, &settings);
        if stalls {
            server.pause();
        }
        child.go_on();
        child.wait_for_exit();
        if stalls {
            server.resume();
        }
        wait_until_free(&server, run);
    }
}
