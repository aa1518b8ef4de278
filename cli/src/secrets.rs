//! Passwords in arguments.
//!
//! Every user of a machine can read the arguments of its processes, so a URL with a password is
//! refused as an argument. The check precedes the parser, as a message about wrong arguments may
//! quote the password. `REDIS_URL` and `--password-file` remain for passwords.

use std::ffi::OsString;

/// The message if the arguments have a password.
pub(crate) const ADVICE: &str = "a URL on the command line has a password, and every user of this \
                                 machine can read command lines: put the URL into REDIS_URL, or \
                                 the password into a file and give --password-file";

/// Whether an argument of wheellock has a password. Arguments after `--` belong to the command, and
/// are not checked.
pub(crate) fn is_in_arguments(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| has_password(&word.to_string_lossy()))
}

/// Whether the text has a URL with a password: `scheme://user:password@host`, or the parameter
/// `pass` of a Unix socket's URL.
fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else {
        return false;
    };
    // A password may contain an unescaped slash, so the whole rest is searched.
    let in_front = rest
        .rsplit_once('@')
        .and_then(|(user, _)| user.split_once(':'))
        .is_some_and(|(_, password)| !password.is_empty());
    let as_parameter = rest.split(['?', '&']).skip(1).any(|pair| pair.starts_with("pass="));
    in_front || as_parameter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_found_in_every_form_of_url() {
        for secret in [
            "redis://:s3cret@host/",
            "redis://user:s3cret@host:6379/0",
            "--redis=rediss://:s3@cret@host",
            "redis-sentinel://:s3cret@a:1,b:2/master",
            "redis://:s3/cret@host",
            "unix:///run/redis.sock?db=1&pass=s3cret",
            "nonsense://a:b@c",
        ] {
            assert!(has_password(secret), "{secret}");
        }
        for plain in [
            "redis://host:6379/0",
            "redis://user@host:6379",
            "redis://user:@host",
            "redis://[::1]:6379/",
            "unix:///run/redis.sock?db=1&user=pass",
            "orders:42@home",
            "",
        ] {
            assert!(!has_password(plain), "{plain}");
        }
    }

    #[test]
    fn the_arguments_of_the_command_are_its_own() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(is_in_arguments(&words("wheellock run --redis redis://:x@h n -- true")));
        assert!(!is_in_arguments(&words("wheellock run n -- redis-cli -u redis://:x@h")));
    }
}
