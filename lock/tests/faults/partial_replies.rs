//! Replies that arrive byte by byte: one deadline for the whole reply, not one per piece.

use std::time::Duration;

use crate::common::{ProxiedServer, SLACK, SOON, Script, TIMEOUT, built, timed};
use wheellock::{Client, Error};
use wheellock_fixture::{Fault, wait_until};

/// Each byte comes well within the command timeout, and no reply does.
const DRIP: Fault = Fault::DripReply(Duration::from_millis(100));

#[test]
fn handshake_received_byte_by_byte_ends_at_command_timeout() {
    let setup = ProxiedServer::new();
    setup.proxy.on(|_| true, DRIP).always();
    // No authentication: the first reply is a long one.
    let builder = Client::builder().url(&setup.proxy.url()).command_timeout(TIMEOUT);
    let (result, took) = timed(|| builder.build());
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
}

#[test]
fn acquire_with_reply_byte_by_byte_fails_and_grant_is_released() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let answers = setup.on(Script::Acquire, "a", DRIP).always();
    let (result, took) = timed(|| client.lock("a").try_lock());
    let error = result.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    assert!(took < TIMEOUT * 2 + SLACK, "{took:?}");
    answers.withdraw();
    setup.wait_until_gone("a");
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn acquire_with_malformed_reply_triggers_release() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let strange = Fault::AnswerInstead(b"+what is this\r\n".to_vec());
    let answer = setup.on(Script::Acquire, "a", strange);
    let releases = setup.on(Script::Release, "a", Fault::PassOn).always();
    client.lock("a").try_lock().unwrap_err();
    assert_eq!(answer.hits(), 1);
    wait_until("it is released", SOON, || releases.hits() > 0);
}

#[test]
fn a_renewal_whose_reply_comes_byte_by_byte_is_retried_in_time() {
    let setup = ProxiedServer::new();
    let lease = Duration::from_millis(1500);
    let client = built(setup.builder().watchdog_lease(lease));
    let guard = client.lock("a").lock().unwrap();
    // Whole, it would be there after the end of the lease.
    let answer = setup.on(Script::Renew, "a", DRIP);
    answer.wait_for_hit(SOON);
    wait_until("it is renewed", SOON, || client.stats().renewed + client.stats().lost > 0);
    assert!(guard.is_held() && client.stats().lost == 0);
    guard.unlock().unwrap();
}
