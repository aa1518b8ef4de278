//! The parser of server URLs, on any text and on URLs around a secret.
//!
//! If the first byte of an input is even, the rest is a URL. If it is odd, the next byte selects
//! one of [`FORMS`], and the rest is the password in it; its letters are all replaced by the one
//! letter that no message contains.
//!
//! # What holds for every input
//!
//! * Nothing panics.
//! * A URL that is accepted names at least one server, none twice, each with a host and a port, and
//!   no database below zero. Written anew from what was parsed, it is parsed to the same.
//! * A password in which everything but letters and digits is written with percent signs comes
//!   back as it was, in each valid form.
//! * No error contains a letter of a password, however it is written; neither does the `Debug` of
//!   what was parsed.

#![cfg_attr(fuzzing, no_main)]

mod wheellock;

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use wheellock::store::redis::address::url::{Access, Address, Location, Place};
use wheellock::{error, model, ops, store, waits};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("server_url", run)
}

/// The letter of all passwords. Neither messages nor forms contain it.
const LETTER: char = 'Q';

/// What is before and after a password, and whether it is a valid URL if the password is one.
const FORMS: [(&str, &str, bool); 16] = [
    ("redis://ann:", "@a.example:7000/3", true),
    ("valkey://:", "@[::1]", true),
    ("redis-sentinel://ann:", "@a,b:1,[::1]:7/my-master.1/2", true),
    ("valkey-sentinel://:", "@a/mymaster", true),
    ("redis-cluster://ann:", "@a:1,b,[::1]:7", true),
    ("valkey-cluster://:", "@a/0", true),
    ("unix:///run/lock.sock?db=2&user=ann&pass=", "", true),
    ("redis+unix:///run/lock.sock?pass=", "&user=ann", true),
    ("redis://ann:", "@a:70000", false),
    ("redis://ann:", "@a/x", false),
    ("redis://", "@a:x", false),
    ("redis://ann:", "@", false),
    ("redis-sentinel://ann:", "@a/my master", false),
    ("redis-cluster://ann:", "@a,,b", false),
    ("unix:///run/lock.sock?pass=", "&name=x", false),
    ("rediss://ann:", "@a", false),
];

/// Parses an input, and returns how many URLs were parsed.
///
/// # Panics
///
/// If something does not hold.
fn run(bytes: &[u8]) -> usize {
    let Some((kind, rest)) = bytes.split_first() else { return 0 };
    if kind % 2 == 0 {
        return check_url(&String::from_utf8_lossy(rest));
    }
    let Some((form, secret)) = rest.split_first() else { return 0 };
    let letter = |letter: char| if letter.is_ascii_alphabetic() { LETTER } else { letter };
    let secret: String = String::from_utf8_lossy(secret).chars().map(letter).collect();
    check_secret(FORMS[usize::from(*form) % FORMS.len()], &secret)
}

fn check_url(url: &str) -> usize {
    let Ok(location) = Location::parse(url) else { return 1 };
    check_place(&location.place);
    assert!(location.access.database >= 0);
    let again = written(&location);
    let Ok(parsed) = Location::parse(&again) else { panic!("{again} is refused") };
    assert_eq!(parsed.identity(), location.identity(), "{again}");
    assert!(is_same(&parsed.access, &location.access), "{again}");
    2
}

fn check_place(place: &Place) {
    match place {
        Place::Single(address) => check_addresses(std::slice::from_ref(address)),
        Place::Unix(path) => assert!(path.is_absolute()),
        Place::Master { name, sentinels, .. } => {
            assert!(!name.is_empty() && !name.contains(char::is_whitespace));
            check_addresses(sentinels);
        }
        Place::Cluster(seeds) => check_addresses(seeds),
    }
}

fn check_addresses(addresses: &[Address]) {
    assert!(!addresses.is_empty());
    for (index, address) in addresses.iter().enumerate() {
        assert!(!addresses[..index].contains(address), "{address} twice");
        let is_plain = |letter: char| !letter.is_whitespace() && !"@/?#[]".contains(letter);
        assert!(!address.host.is_empty() && address.host.chars().all(is_plain), "{address:?}");
        assert!(address.port > 0, "{address}");
    }
}

fn is_same(one: &Access, other: &Access) -> bool {
    one.database == other.database
        && one.username == other.username
        && one.password == other.password
}

/// The URL of a location.
fn written(location: &Location) -> String {
    let Access { database, username, password, .. } = &location.access;
    let text = |text: &Option<String>| escaped(text.as_deref().unwrap_or_default().as_bytes());
    let (user, password) = (text(username), text(password));
    let all = |addresses: &[Address]| {
        addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
    };
    match &location.place {
        Place::Single(address) => format!("redis://{user}:{password}@{address}/{database}"),
        Place::Unix(path) => {
            let path = escaped(path.as_os_str().as_bytes().get(1..).unwrap_or_default());
            format!("unix:///{path}?db={database}&user={user}&pass={password}")
        }
        Place::Master { name, sentinels, .. } => {
            let sentinels = all(sentinels);
            format!("redis-sentinel://{user}:{password}@{sentinels}/{name}/{database}")
        }
        Place::Cluster(seeds) => format!("redis-cluster://{user}:{password}@{}", all(seeds)),
    }
}

/// Everything but letters and digits is written with a percent sign.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(*byte));
        } else {
            assert!(write!(text, "%{byte:02x}").is_ok());
        }
    }
    text
}

fn check_secret((before, after, is_valid): (&str, &str, bool), secret: &str) -> usize {
    match Location::parse(&format!("{before}{}{after}", escaped(secret.as_bytes()))) {
        Err(error) => {
            assert!(!is_valid, "{error}");
            check_hidden(&format!("{error} {error:?}"));
        }
        Ok(location) => {
            assert!(is_valid, "{location:?}");
            assert_eq!(location.access.password.as_deref().unwrap_or_default(), secret);
            check_hidden(&format!("{location:?} {}", location.identity()));
        }
    }
    // As it is typed by one who does not know of percent signs.
    match Location::parse(&format!("{before}{secret}{after}")) {
        Err(error) => check_hidden(&format!("{error} {error:?}")),
        // A query may name a user of these letters.
        Ok(location) => check_hidden(&location.identity()),
    }
    2
}

fn check_hidden(shown: &str) {
    assert!(!shown.contains(LETTER), "{shown}");
}
