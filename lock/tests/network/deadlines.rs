//! Each call ends by its own deadline, wherever it is then: in the queue, in a batch that another
//! thread has written, as the thread that writes for the queue, while connecting, while reading.
//! And its error says whether the command may have run.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "figures for a reader, who asks for them")]

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};

use crate::common::{ProxiedServer, SOON, Script, built, pause, timed};
use crate::impatience::BUSY;
use wheellock::{Client, ClientBuilder, Error};
use wheellock_fixture::{Fault, Server, wait_until};

/// Far longer than what a test waits for: only the limit of the call itself ends a call.
const LONG: Duration = Duration::from_secs(60);
/// What a busy machine may add to a limit.
const SLACK: Duration = Duration::from_millis(1500);
/// And what such a machine adds to few of many calls only.
const USUAL_SLACK: Duration = Duration::from_millis(500);
/// The shortest limit of a call that is to have begun before something happens, and the time that
/// its thread has for that.
const FIRST: Duration = Duration::from_secs(1);
const ROOM: Duration = Duration::from_millis(200);
/// A call that has ended without the lock.
struct Ended {
    name: String,
    limit: Duration,
    took: Duration,
    error: Error,
}

/// Tries the lock of that name for so long, in vain.
fn try_in_vain(client: &Client, name: &str, limit: Duration) -> Ended {
    let (result, took) = timed(|| client.lock(name).try_lock_for(limit).map(|_| ()));
    Ended { name: name.to_owned(), limit, took, error: result.unwrap_err() }
}

/// Runs calls with these limits at the same time, each on the lock of its number.
fn try_all_in_vain(client: &Client, limits: &[Duration]) -> Vec<Ended> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(limits)
            .map(|(number, limit)| {
                scope.spawn(move || try_in_vain(client, &format!("call {number}"), *limit))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// So many limits, from `first` on.
fn limits(count: u32, first: Duration, step: Duration) -> Vec<Duration> {
    (0..count).map(|number| first + step * number).collect()
}

fn assert_on_time(place: &str, calls: &[Ended]) {
    let mut late: Vec<Duration> =
        calls.iter().map(|call| call.took.saturating_sub(call.limit)).collect();
    late.sort_unstable();
    let (median, worst) = (late[late.len() / 2], late[late.len() - 1]);
    println!("{place}: {} calls, late by {median:?} in the median, {worst:?} at worst", late.len());
    for Ended { limit, took, error, .. } in calls {
        assert!(took >= limit, "{place}: {limit:?} ended after {took:?}: {error}");
    }
    assert!(median < USUAL_SLACK && worst < SLACK, "{place}: {late:?}");
}

fn assert_not_sent(place: &str, calls: &[Ended]) {
    for Ended { error, .. } in calls {
        assert!(matches!(error, Error::Unreachable { .. }), "{place}: {error:?}");
    }
}

fn assert_may_have_run(place: &str, calls: &[Ended]) {
    for Ended { error, .. } in calls {
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{place}: {error:?}");
    }
}

/// A server whose client has one connection for calls, and the names of the locks whose acquire has
/// passed the proxy, in order.
fn with_one_connection() -> (ProxiedServer, Client, Arc<Mutex<Vec<String>>>) {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(LONG).max_connections(1));
    let names = Arc::<Mutex<Vec<String>>>::default();
    let (seen, is_acquire) = (Arc::clone(&names), setup.is_any(Script::Acquire));
    setup.proxy.on(
        move |request| {
            if is_acquire(request) {
                seen.lock().push(request.argument(3));
            }
            false
        },
        Fault::PassOn,
    );
    (setup, client, names)
}

#[test]
fn calls_in_the_queue_end_on_time_and_were_not_sent() {
    let _quiet = BUSY.read();
    let (setup, client, names) = with_one_connection();
    setup.server.pause();
    thread::scope(|scope| {
        let first = scope.spawn(|| client.lock("first").lock().map(drop));
        wait_until("the connection is in use", SOON, || names.lock().len() == 1);
        let step = Duration::from_millis(25);
        let calls = try_all_in_vain(&client, &limits(40, step, step));
        setup.server.resume();
        first.join().unwrap().unwrap();
        assert_on_time("queue", &calls);
        assert_not_sent("queue", &calls);
    });
    // Nothing but the own call has passed, and no call of the queue was sent afterwards.
    assert_eq!(*names.lock(), ["first"]);
}

/// The first in the queue writes for the others too, and nobody gets an answer.
fn end_in_a_batch(place: &str, of_writer: Duration, of_others: &[Duration]) {
    let (setup, client, names) = with_one_connection();
    let held = setup.proxy.on(|request| request.contains("first"), Fault::HoldReply);
    let calls = thread::scope(|scope| {
        let first = scope.spawn(|| client.lock("first").is_locked());
        held.wait_for_hit(SOON);
        let writer = scope.spawn(|| try_in_vain(&client, "writer", of_writer));
        pause(ROOM);
        let others = scope.spawn(|| try_all_in_vain(&client, of_others));
        pause(ROOM);
        setup.server.pause();
        held.deliver();
        assert_eq!(first.join().unwrap(), Ok(false));
        let mut calls = others.join().unwrap();
        calls.push(writer.join().unwrap());
        calls
    });
    let names = names.lock().clone();
    setup.server.resume();
    assert_on_time(place, &calls);
    assert_eq!(names[0], "writer", "{names:?}");
    // Whoever came later than the batch, on a busy machine, was not sent.
    let (written, queued): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|call| names.contains(&call.name));
    assert_may_have_run(place, &written);
    assert_not_sent(place, &queued);
    assert!(written.len() > of_others.len() / 2, "{place}: {names:?}");
}

#[test]
fn calls_written_by_another_thread_end_on_time_and_may_have_run() {
    let _quiet = BUSY.read();
    let others = limits(12, FIRST, Duration::from_millis(25));
    end_in_a_batch("batch of a patient writer", Duration::from_secs(2), &others);
}

#[test]
fn hasty_batch_writer_ends_on_time_and_keeps_longer_deadlines() {
    let _quiet = BUSY.read();
    let others = limits(12, FIRST * 2, Duration::from_millis(50));
    end_in_a_batch("batch of a hasty writer", FIRST, &others);
}

#[test]
fn calls_end_on_time_while_connecting_and_were_not_sent() {
    let _quiet = BUSY.read();
    let step = Duration::from_millis(50);
    let lazy =
        |builder: ClientBuilder| builder.command_timeout(LONG).connect_lazily().build().unwrap();
    let (address, _socket, _inside) = abyss();
    let client = lazy(Client::builder().url(&format!("redis://{address}/")));
    let calls = try_all_in_vain(&client, &limits(20, step, step));
    assert_on_time("full backlog", &calls);
    assert_not_sent("full backlog", &calls);

    let setup = ProxiedServer::new();
    setup.proxy.hang_new_connections(true);
    let client = lazy(setup.builder());
    let calls = try_all_in_vain(&client, &limits(20, step, step));
    assert_on_time("handshake without an answer", &calls);
    assert_not_sent("handshake without an answer", &calls);
    setup.proxy.cut_all();
}

/// An address that accepts no connection: its backlog is full. Ends with the returned value.
fn abyss() -> (SocketAddr, Socket, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let brief = Duration::from_millis(100);
    let inside = std::iter::from_fn(|| TcpStream::connect_timeout(&address, brief).ok()).collect();
    (address, socket, inside)
}

#[test]
fn a_build_ends_by_its_timeout_in_the_last_step_too() {
    let setup = ProxiedServer::new();
    let timeout = FIRST * 4;
    // Connecting takes most of the time, and then INFO gets no reply.
    let slow = Fault::DelayReply(timeout * 2 / 3);
    let connecting = setup.proxy.on(|request| request.name() != "INFO", slow);
    let _silent = setup.proxy.on(|request| request.name() == "INFO", Fault::SwallowReply).always();
    let (result, took) = timed(|| setup.builder().command_timeout(timeout).build());
    connecting.wait_for_hit(SOON);
    result.unwrap();
    assert!(took < timeout + SLACK, "{took:?}");
}

#[test]
fn calls_at_a_stopped_server_end_on_time() {
    let _quiet = BUSY.read();
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(LONG));
    client.ping().unwrap();
    server.pause();
    // One call after the other, and then many at once. The longest shows how a system rounds.
    let alone: Vec<Ended> = limits(6, FIRST / 6, Duration::from_millis(70))
        .into_iter()
        .map(|limit| try_in_vain(&client, "alone", limit))
        .collect();
    assert_on_time("stopped server, one thread", &alone);
    let calls = try_all_in_vain(&client, &limits(40, FIRST / 6, Duration::from_millis(50)));
    assert_on_time("stopped server", &calls);
    server.resume();
}

#[test]
fn calls_with_replies_byte_by_byte_end_on_time_and_may_have_run() {
    let _quiet = BUSY.read();
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(LONG));
    let drip = Fault::DripReply(Duration::from_secs(1));
    let drips = setup.proxy.on(setup.is_any(Script::Acquire), drip).always();
    let calls: Vec<Ended> = limits(4, FIRST / 2, FIRST / 2)
        .into_iter()
        .map(|limit| try_in_vain(&client, "one byte a second", limit))
        .collect();
    drips.withdraw();
    assert_on_time("one byte a second", &calls);
    assert_may_have_run("one byte a second", &calls);
}

#[test]
fn calls_with_short_deadlines_end_on_time_beside_longer_waits() {
    let _quiet = BUSY.read();
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(LONG));
    client.ping().unwrap();
    server.pause();
    let answered = thread::scope(|scope| {
        let patient: Vec<_> = (0..40)
            .map(|number| {
                let client = &client;
                scope.spawn(move || client.lock(&format!("patient {number}")).lock().map(drop))
            })
            .collect();
        let step = Duration::from_millis(10);
        let calls = try_all_in_vain(&client, &limits(40, step, step));
        server.resume();
        assert_on_time("among patient callers", &calls);
        patient.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    // And the hasty have cost the patient nothing.
    assert_eq!(answered, vec![Ok(()); 40]);
}
