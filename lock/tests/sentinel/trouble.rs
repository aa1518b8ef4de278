//! Sentinels that are silent or behind, and masters that let nobody listen.

use std::thread;

use wheellock::Client;
use wheellock_fixture::{Fault, Proxy, Server, wait_until};

use super::{SECOND, asking, listened, pair};
use crate::common::{SOON, built, pause, timed};
use crate::fake::FakeSentinel;

#[test]
fn a_master_that_refuses_channels_is_not_asked_for_them_in_a_hurry() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let sentinel = FakeSentinel::start(Some((proxy.address(), 5)));
    let client = built(asking(&[&sentinel]));
    server.command(&["HSET", "a", "somebody:1", "1"]);
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
fn one_that_was_silent_is_asked_if_the_others_know_less_than_is_known() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [6, 6].map(|epoch| FakeSentinel::start(Some((old.address(), epoch))));
    let roads = sentinels.each_ref().map(|sentinel| Proxy::start(sentinel.address()));
    let addresses = roads.each_ref().map(|road| road.address().to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    let builder = Client::builder().sentinels("mymaster", &addresses);
    let client = built(builder.command_timeout(SECOND * 3));
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
