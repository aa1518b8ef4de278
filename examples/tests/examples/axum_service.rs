//! The example `axum_service` as its users meet it: over HTTP, on a server, with signals.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{Read, Write};
use std::net::TcpStream;

use wheellock::Client;
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{PATIENCE, example};

/// A running service, and its address.
struct Service {
    process: TestProcess,
    address: String,
}

impl Service {
    /// Its requests wait for a lock for so many seconds.
    fn start(server: &Server, wait: &str) -> Self {
        let arguments = [&*server.url(), "127.0.0.1:0", wait];
        let mut process = TestProcess::spawn(&mut example("axum_service", &arguments));
        let line = process.wait_for_line("listening on ", PATIENCE);
        let address = line.trim_start_matches("listening on ").to_owned();
        Self { process, address }
    }

    /// Sends a request and does not wait for the answer.
    fn send(&self, method: &str, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = "HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        write!(stream, "{method} {path} {end}").unwrap();
        stream
    }

    fn ship(&self, order: &str, millis: u32) -> TcpStream {
        self.send("POST", &format!("/orders/{order}/ship/{millis}"))
    }

    fn health(&self) -> u16 {
        answer(self.send("GET", "/health")).0
    }
}

/// The status and the text of an answer.
fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn is_locked(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).integer() == 1
}

/// How many clients wait for that lock.
fn waiting(server: &Server, name: &str) -> i64 {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    server.command(&["PUBSUB", "NUMSUB", &channel]).array()[1].integer()
}

#[test]
fn a_request_works_under_its_lock_and_releases_it() {
    let server = Server::start();
    let service = Service::start(&server, "1");
    let (status, text) = answer(service.ship("1", 100));
    assert_eq!((status, &*text), (200, "order 1 is shipped"));
    assert!(!is_locked(&server, "orders:1"));

    let client = Client::connect(&server.url()).unwrap();
    let _guard = client.lock("orders:2").lock().unwrap();
    let (status, text) = answer(service.ship("2", 0));
    assert_eq!((status, &*text), (409, "order 2 is being worked on"));
}

#[test]
fn requests_for_same_order_run_in_sequence_without_overlap() {
    let server = Server::start();
    let service = Service::start(&server, "60");
    let shipping: Vec<_> = (0..100).map(|_| service.ship("1", 1)).collect();
    // More wait than may occupy a thread, and others are answered all the same.
    assert_eq!(service.health(), 200);
    for shipping in shipping {
        assert_eq!(answer(shipping).0, 200);
    }
    assert!(!is_locked(&server, "orders:1"));
}

#[test]
fn a_loss_ends_the_work_under_the_lock() {
    let server = Server::start();
    let service = Service::start(&server, "5");
    let shipping = service.ship("1", 600_000);
    wait_until("it is locked", PATIENCE, || is_locked(&server, "orders:1"));
    server.command(&["DEL", "orders:1"]);
    let (status, text) = answer(shipping);
    assert_eq!(status, 503);
    assert!(text.starts_with("the lock was lost: "), "{text}");
}

#[test]
fn a_requester_that_goes_ends_its_wait_and_its_work() {
    let server = Server::start();
    let service = Service::start(&server, "600");
    let working = service.ship("1", 600_000);
    wait_until("it is locked", PATIENCE, || is_locked(&server, "orders:1"));
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock("orders:2").lock().unwrap();
    let waits = service.ship("2", 600_000);
    wait_until("it waits", PATIENCE, || waiting(&server, "orders:2") == 1);
    drop((working, waits));
    wait_until("the work has ended", PATIENCE, || !is_locked(&server, "orders:1"));
    wait_until("the wait has ended", PATIENCE, || waiting(&server, "orders:2") == 0);
    guard.unlock().unwrap();
    assert!(client.lock("orders:2").try_lock().unwrap().is_some());
}

#[test]
fn it_starts_without_its_server_and_its_health_tells() {
    let server = Server::start();
    server.kill();
    let service = Service::start(&server, "1");
    assert_eq!(service.health(), 503);
    assert_eq!(answer(service.ship("1", 0)).0, 503);
    server.start_again();
    wait_until("it is healthy", PATIENCE, || service.health() == 200);
    assert_eq!(answer(service.ship("1", 0)).0, 200);
}

#[test]
fn a_termination_lets_requests_end_and_leaves_no_lock() {
    let server = Server::start();
    let mut service = Service::start(&server, "60");
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock("orders:1").lock().unwrap();
    let shipping = service.ship("1", 100);
    wait_until("it waits", PATIENCE, || waiting(&server, "orders:1") == 1);
    service.process.terminate();
    // It listens no more, so the signal has arrived.
    wait_until("it ends", PATIENCE, || TcpStream::connect(&service.address).is_err());
    guard.unlock().unwrap();
    assert_eq!(answer(shipping).0, 200);
    assert_eq!(service.process.wait_for_exit(PATIENCE), 0, "{}", service.process.output());
    let output = service.process.wait_for_output(PATIENCE);
    assert!(output.contains("ended, unreleased: []"), "{output}");
    assert!(!is_locked(&server, "orders:1"));
}
