//! On several connections an acquire may overtake the release of a dropped guard. No caller notices:
//! the client asks the server a second time.

#![expect(clippy::print_stdout, reason = "figures for a reader, who asks for them")]

use std::time::Duration;

use wheellock::Client;
use wheellock_fixture::{Proxy, Server};

use crate::common::built;
use crate::common::turns::take_in_turn;

/// A busy machine answers within that time.
const TIMEOUT: Duration = Duration::from_secs(30);

fn client(url: &str) -> Client {
    built(Client::builder().url(url).command_timeout(TIMEOUT))
}

#[test]
fn alternating_threads_never_find_lock_held_after_guard_drop() {
    let server = Server::start();
    let (tries, again) = take_in_turn(&client(&server.url()), &server, 10_000, 0);
    println!("two threads: {again} second questions in {tries} tries");
}

#[test]
fn turns_beside_callers_of_other_locks_never_find_the_lock_held() {
    let server = Server::start();
    let (tries, again) = take_in_turn(&client(&server.url()), &server, 1_000, 64);
    println!("two threads beside 64: {again} second questions in {tries} tries");
}

#[test]
fn turns_through_a_slow_link_never_find_the_lock_held() {
    let server = Server::start();
    for others in [0, 16] {
        let proxy = Proxy::start(server.address());
        proxy.delay_requests(Duration::from_micros(500));
        proxy.delay_replies(Duration::from_micros(500));
        let (tries, again) = take_in_turn(&client(&proxy.url()), &server, 500, others);
        println!(
            "slow link, two threads beside {others}: {again} second questions in {tries} tries"
        );
    }
}
