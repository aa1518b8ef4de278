//! Sentinels that are silent or behind, and masters that deny SUBSCRIBE.

use std::net::{SocketAddr, TcpStream};
use std::thread;

use socket2::{Domain, Socket, Type};
use wheellock::{Client, ClientBuilder, LostReason};
use wheellock_fixture::{Fault, Proxy, Server, wait_until};

use super::{SECOND, asking, listened, pair, wait_until_followed};
use crate::SOON;
use crate::common::{built, pause, timed};
use crate::fake::FakeSentinel;

#[test]
fn a_master_that_denies_subscribe_is_not_retried_in_a_busy_loop() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let sentinel = FakeSentinel::start(Some((proxy.address(), 5)));
    let client = built(asking(&[&sentinel]));
    server.command(&["HSET", "a", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    server.command(&["PEXPIRE", "a", "600000"]);
    let loading = b"-LOADING Redis is loading the dataset in memory\r\n".to_vec();
    let is_wish = |request: &wheellock_fixture::Request| request.name() == "SUBSCRIBE";
    let wishes = proxy.on(is_wish, Fault::AnswerInstead(loading)).always();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").try_lock_for(SOON).map(drop));
        wishes.wait_for_hit(SOON);
        pause(SECOND * 2);
        // Each pause is twice the one before.
        assert!(wishes.hits() <= 12, "{} times", wishes.hits());
        server.command(&["DEL", "a"]);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn sentinel_closing_subscriptions_is_not_retried_in_busy_loop() {
    let server = Server::start();
    let sentinel = FakeSentinel::start(Some((server.address(), 5)));
    let _client = built(asking(&[&sentinel]));
    wait_until_followed(&sentinel);
    let before = sentinel.accepted();
    sentinel.hang_up_on_listeners();
    wait_until("it listens anew", SOON, || sentinel.accepted() > before);
    pause(SECOND * 2);
    let anew = sentinel.accepted() - before;
    assert!(anew <= 12, "{anew} times");
}

/// A client that asks sentinels behind proxies.
fn by_way_of(roads: &[Proxy]) -> ClientBuilder {
    let addresses: Vec<_> = roads.iter().map(|road| road.address().to_string()).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Client::builder().sentinels("mymaster", &addresses).command_timeout(SECOND * 3)
}

#[test]
fn a_silent_sentinel_is_queried_if_the_others_are_behind() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [6, 6].map(|epoch| FakeSentinel::start(Some((old.address(), epoch))));
    let roads = sentinels.each_ref().map(|sentinel| Proxy::start(sentinel.address()));
    let client = built(by_way_of(&roads));
    pair(&client, "a");
    let place = 1 - listened(&sentinels);
    let (other, road) = (&sentinels[place], &roads[place]);
    // It is asked at every look, and is silent from the next one on.
    road.refuse(true);
    road.reset_all();
    let before = road.accepted();
    wait_until("it was silent", SOON, || road.accepted() > before);
    road.refuse(false);
    sentinels[1 - place].says(old.address(), 5);
    other.says(new.address(), 7);
    old.kill();
    let ((), took) = timed(|| pair(&client, "a"));
    // The thread that looks for itself asks those that are silent every ten seconds.
    assert!(took < SECOND * 3, "{took:?}");
}

#[test]
fn silent_sentinels_are_queried_last() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = FakeSentinel::start(Some((old.address(), 5)));
    let roads = [(); 4].map(|()| Proxy::start(sentinel.address()));
    for road in &roads[..3] {
        road.hang_new_connections(true);
    }
    let client = built(by_way_of(&roads));
    wait_until_followed(&sentinel);
    sentinel.says(new.address(), 6);
    old.kill();
    // Each of the others would keep the call for half a second.
    let ((), took) = timed(|| pair(&client, "a"));
    assert!(took < SECOND, "{took:?}");
}

#[test]
fn when_the_subscribed_sentinel_hangs_another_is_used() {
    let server = Server::start();
    let sentinels = [5, 5].map(|epoch| FakeSentinel::start(Some((server.address(), epoch))));
    let roads = sentinels.each_ref().map(|sentinel| Proxy::start(sentinel.address()));
    let client = built(by_way_of(&roads));
    let place = listened(&sentinels);
    roads[place].hold_all(true);
    wait_until("the other is listened to", SOON, || sentinels[1 - place].listeners() > 0);
    pair(&client, "a");
}

#[test]
fn after_a_failover_outdated_sentinels_do_not_lead_back() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [5, 5, 5].map(|epoch| FakeSentinel::start(Some((old.address(), epoch))));
    let client = built(asking(&[&sentinels[0], &sentinels[1], &sentinels[2]]));
    let held = client.lock("held").with_lease(SECOND * 600).lock().unwrap();
    let ahead = &sentinels[listened(&sentinels)];
    ahead.says(new.address(), 6);
    ahead.tell(old.address(), new.address());
    assert_eq!(held.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
    // The sentinel that reported it is silent, and the two others are more than half.
    ahead.forget();
    new.kill();
    let scripts = || old.command_calls("evalsha") + old.command_calls("eval");
    let before = scripts();
    let error = client.lock("a").try_lock().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(scripts(), before);
}

/// An address that accepts no connection: its backlog is full. Ends with the returned value.
fn abyss() -> (SocketAddr, Socket, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let brief = SECOND / 10;
    let inside = std::iter::from_fn(|| TcpStream::connect_timeout(&address, brief).ok()).collect();
    (address, socket, inside)
}

#[test]
fn vanished_master_costs_half_timeout_before_new_sentinel_query() {
    let server = Server::start();
    let (vanished, _socket, _inside) = abyss();
    let sentinel = FakeSentinel::start(Some((vanished, 5)));
    thread::scope(|scope| {
        let building = scope.spawn(|| built(asking(&[&sentinel]).command_timeout(SECOND * 3)));
        // It was told where the old one is, and goes there.
        wait_until("it was asked", SOON, || sentinel.asked() > 0);
        pause(SECOND / 2);
        sentinel.says(server.address(), 6);
        pair(&building.join().unwrap(), "a");
    });
}
