//! The user of the tests' clients: it has the permissions that the operations guide lists, and no
//! others.

use std::sync::LazyLock;

use wheellock::{Client, ClientBuilder};
use wheellock_fixture::{Sentinels, SentinelsBuilder, Server};

const GUIDE: &str = include_str!("../../docs/operations.md");

/// Of the operations guide's rules the one for the whole family, in the words of `ACL SETUSER`.
/// Only the names of the locks are any, and not those that begin with `orders:`.
pub(crate) static RULE: LazyLock<String> = LazyLock::new(|| {
    let rule = rule_that_begins("family on ");
    let keys = " ~*orders:* ~wheellock_client:* ";
    assert!(rule.contains(keys), "{rule}");
    rule.replace(keys, " ~* ")
});

/// What it needs besides, by the first word of the operations guide's rule about it: behind
/// sentinels, in a cluster, and where replicas have to acknowledge what is taken.
pub(crate) const BEHIND_SENTINELS: &str = "+role";
pub(crate) const IN_A_CLUSTER: &str = "+asking";
pub(crate) const WITH_REPLICAS: &str = "+wait";
/// And where it counts waiters and lists locks.
pub(crate) const LOOKING: &str = "+pubsub|numsub";

/// The rule for the whole family, and what is needed besides.
pub(crate) fn rule_with(besides: &[&str]) -> String {
    let mut rule = RULE.clone();
    for first in besides {
        let more = rule_that_begins(&format!("family {first}"));
        rule.push_str(more.trim_start_matches("family"));
    }
    rule
}

/// Servers and sentinels that know the operations guide's users.
pub(crate) fn known_to(sentinels: SentinelsBuilder, besides: &[&str]) -> SentinelsBuilder {
    let besides = [&[BEHIND_SENTINELS], besides].concat();
    sentinels.user(&rule_with(&besides)).sentinel_user(rule_that_begins("watcher on "))
}

/// A client that is these users.
pub(crate) fn behind(sentinels: &Sentinels) -> ClientBuilder {
    let builder = Client::builder().url(&user_url(&sentinels.url()));
    builder.sentinel_credentials(Some("watcher"), "password")
}

/// The same URL, with the operations guide's user.
pub(crate) fn user_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { panic!("no URL: {url}") };
    let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
    format!("{scheme}://family:password@{server}")
}

/// In the words of `ACL SETUSER`.
pub(crate) fn rule_that_begins(beginning: &str) -> &'static str {
    let mut rules = GUIDE.lines().filter_map(|line| line.strip_prefix("ACL SETUSER "));
    let Some(rule) = rules.find(|rule| rule.starts_with(beginning)) else {
        panic!("the operations guide has no rule that begins with {beginning:?}")
    };
    rule
}

/// What a server has refused for lack of a permission, and to which user.
pub(crate) fn refusals(server: &Server) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]);
    log.array().iter().map(|entry| format!("{entry:?}")).collect()
}
