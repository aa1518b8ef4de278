//! The user that the tests' clients are: he may do what the README says is needed, and nothing else.

use std::sync::LazyLock;

const README: &str = include_str!("../../../README.md");

/// Of the README's rules the one for the whole family, in the words of `ACL SETUSER`. Only the names of the locks are
/// any, and not those that begin with `orders:`.
pub(crate) static RULE: LazyLock<String> = LazyLock::new(|| {
    let rule = README
        .lines()
        .filter_map(|line| line.strip_prefix("ACL SETUSER "))
        .find(|rule| rule.starts_with("family "));
    let Some(rule) = rule else { panic!("the README does not say what a user needs") };
    assert!(rule.contains(" ~*orders:* "), "{rule}");
    rule.replace(" ~*orders:* ", " ~* ")
});

/// The same URL, as that user.
pub(crate) fn user_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { panic!("no URL: {url}") };
    let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
    format!("{scheme}://family:password@{server}")
}
