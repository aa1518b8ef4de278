//! Recognizes the content of a key: nothing, a lock, a number or anything else.
//!
//! Status queries and forced releases share this definition of a lock, so everything shown as a
//! lock can be ended by force. No other place defines a lock.
//!
//! `scripts/recognize.lua` has the definition for a server, with explanations. The methods here
//! apply the same definition to a keyspace in memory.

use crate::ops::keyspace::Keyspace;
use crate::ops::operation::{KEPT, WRITE};
use crate::ops::read_write::MODE;
use crate::ops::value::Value;

/// The maximum number of inspected and returned owners of a lock, and waiters of a queue: a reply
/// is bounded.
pub(crate) const MOST: usize = 1000;

/// The maximum length of a field, a simple lock's text and a waiter, in bytes.
pub(crate) const LONGEST: usize = 128;

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// A lock stored as a hash.
    Owners {
        /// `read` or `write` of a read-write lock.
        mode: Option<String>,
        /// The owners with their hold counts; some of them, if there are many.
        owners: Vec<(String, u32)>,
        /// The number of owners.
        count: usize,
    },
    /// The owner of a simple lock.
    Simple(String),
    Number(String),
    /// Content unknown to this library: the type of the key.
    Other(String),
}

impl Content {
    /// Returns the scripts' word for this content.
    pub(crate) fn word(&self) -> &str {
        match self {
            Self::Nothing => "none",
            Self::Owners { mode, .. } => mode.as_deref().unwrap_or("lock"),
            Self::Simple(_) => "simple",
            Self::Number(_) => "number",
            Self::Other(kind) => kind,
        }
    }

    /// Returns the reply of a script that refuses a key with this content.
    pub(crate) fn refusal(&self) -> Value {
        Value::Refusal { code: "WRONGTYPE".to_owned(), message: format!("{HOLDS}{}", self.word()) }
    }

    /// Returns a description for messages.
    pub(crate) fn described(&self) -> String {
        described(self.word())
    }
}

/// The beginning of the message of a refusal.
const HOLDS: &str = "holds ";

/// Returns a description of the key's content, from the message of a refusal.
pub(crate) fn found_in(message: &str) -> String {
    match message.strip_prefix(HOLDS) {
        Some(word) => described(word),
        None => "something that is not a lock".to_owned(),
    }
}

/// Returns a description of the content for which the scripts have this word.
fn described(word: &str) -> String {
    match word {
        "none" => "nothing".to_owned(),
        "lock" => "a lock of another kind: a hash with an owner".to_owned(),
        "read" | "write" => "a lock of another kind: a read-write lock".to_owned(),
        "simple" => "a lock of another kind: a simple lock".to_owned(),
        "number" => "a number, which is not a lock".to_owned(),
        kind => format!("a {kind} that is not a lock"),
    }
}

/// Returns the content of a key.
pub(crate) fn recognize(keyspace: &mut Keyspace, key: &str) -> Content {
    let kind = keyspace.kind(key);
    let found = match kind {
        "none" => Some(Content::Nothing),
        "hash" => owners_of(keyspace, key),
        "string" => {
            let text = keyspace.text_get(key).ok().flatten().unwrap_or_default();
            if text.len() <= LONGEST && is_owner(&text) {
                Some(Content::Simple(text))
            } else {
                (text.len() <= 20 && is_number(&text)).then_some(Content::Number(text))
            }
        }
        _ => None,
    };
    found.unwrap_or_else(|| Content::Other(kind.to_owned()))
}

/// Returns the owners of a lock stored as a hash; `None` if the hash is not a lock.
fn owners_of(keyspace: &mut Keyspace, key: &str) -> Option<Content> {
    let lives = keyspace.time_to_live(key) >= 0;
    let mut fields = keyspace.fields(key);
    let mode = fields.iter().position(|(field, _)| field == MODE);
    let mode = mode.map(|place| fields.remove(place).1);
    let count = fields.len();
    let is_known_mode = mode.as_deref().is_none_or(|mode| mode == "read" || mode == "write");
    if count < 1 || !is_known_mode || count > MOST && mode.is_none() {
        return None;
    }
    let is_owned = |(field, value): &(String, String)| {
        field.len() <= LONGEST && is_count(value) && (lives || is_owner(field))
    };
    if !fields.iter().take(MOST + 1).all(is_owned) {
        return None;
    }
    fields.truncate(MOST);
    let counted = |(field, count): (String, String)| (field, count.parse().unwrap_or(u32::MAX));
    Some(Content::Owners { mode, owners: fields.into_iter().map(counted).collect(), count })
}

/// Returns whether a text is `UUID:NUMBER`, perhaps with the ending of a writer or of a kept hold.
pub(crate) fn is_owner(text: &str) -> bool {
    /// The places of a UUID's hyphens.
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let text = text.strip_suffix(KEPT).unwrap_or(text);
    let text = text.strip_suffix(WRITE).unwrap_or(text);
    let Some((client, number)) = text.split_once(':') else { return false };
    let is_right = |(place, byte): (usize, u8)| {
        if HYPHENS.contains(&place) { byte == b'-' } else { byte.is_ascii_hexdigit() }
    };
    client.len() == 36 && client.bytes().enumerate().all(is_right) && is_digits(number)
}

/// Returns whether a text is a hold count: at most ten digits, the first not zero.
fn is_count(text: &str) -> bool {
    text.len() <= 10 && is_digits(text) && !text.starts_with('0')
}

/// Returns whether a text is a whole number, perhaps negative.
fn is_number(text: &str) -> bool {
    is_digits(text.strip_prefix('-').unwrap_or(text))
}

/// Returns whether a text has digits only, and at least one.
fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use wheellock_fixture::Server;

    use super::*;

    /// Fields of a hash with their values.
    type Fields<'a> = &'a [(&'a str, &'a str)];

    const OWNER: &str = "7f9a3b7e-0F0E-4c3f-9a51-2f4a5d8f0c11:42";

    #[test]
    fn a_key_is_recognized_in_memory_as_on_a_server() {
        let server = Server::start();
        let mut keyspace = Keyspace::default();
        let script = concat!(include_str!("scripts/recognize.lua"), "return recognize(KEYS[1])");
        let compare = |keyspace: &mut Keyspace, what: &str, expected: &str| {
            let on_server = server.command(&["EVAL", script, "1", "a"]).text();
            let in_memory = recognize(keyspace, "a");
            assert_eq!((on_server.as_str(), in_memory.word()), (expected, expected), "{what}");
        };
        compare(&mut keyspace, "nothing", "none");

        let long = "x".repeat(LONGEST + 1);
        for (text, expected) in [
            (OWNER, "simple"),
            (&format!("{OWNER}:kept"), "simple"),
            (&format!("{OWNER}x"), "string"),
            (&OWNER[1..], "string"),
            ("localhost:8080", "string"),
            ("42", "number"),
            ("-42", "number"),
            ("", "string"),
            ("-", "string"),
            ("12345678901234567890", "number"),
            ("123456789012345678901", "string"),
            (&long, "string"),
        ] {
            server.command(&["SET", "a", text]);
            keyspace.text_set("a", text);
            compare(&mut keyspace, text, expected);
        }

        let (writer, kept) = (format!("{OWNER}:write"), format!("{OWNER}:write:kept"));
        let cases: [(Fields<'_>, &str, &str); 14] = [
            (&[(OWNER, "1")], "lock", "lock"),
            (&[(OWNER, "4294967296")], "lock", "lock"),
            (&[(OWNER, "12345678901")], "hash", "hash"),
            (&[(OWNER, "0")], "hash", "hash"),
            (&[(OWNER, "01")], "hash", "hash"),
            (&[(OWNER, "ann")], "hash", "hash"),
            (&[("mode", "read"), (OWNER, "1"), ("another", "2")], "hash", "read"),
            (&[("mode", "write"), (&writer, "1"), (OWNER, "1")], "write", "write"),
            (&[("mode", "write"), (&kept, "1")], "write", "write"),
            (&[("mode", "read")], "hash", "hash"),
            (&[("mode", "dark"), (OWNER, "1")], "hash", "hash"),
            (&[("sku:123", "2")], "hash", "lock"),
            (&[("sku:123", "2"), ("sku:456", "two")], "hash", "hash"),
            (&[(&long, "2")], "hash", "hash"),
        ];
        for (fields, lasting, leased) in cases {
            server.command(&["DEL", "a"]);
            keyspace.delete("a");
            for (field, value) in fields {
                server.command(&["HSET", "a", field, value]);
                keyspace.hash_set("a", field, value).unwrap();
            }
            compare(&mut keyspace, &format!("{fields:?}"), lasting);
            server.command(&["PEXPIRE", "a", "60000"]);
            keyspace.expire("a", 60_000);
            compare(&mut keyspace, &format!("{fields:?} with a time to live"), leased);
        }

        server.command(&["DEL", "a"]);
        keyspace.delete("a");
        for number in 0..=MOST {
            let owner = format!("{OWNER}{number}");
            server.command(&["HSET", "a", &owner, "1"]);
            keyspace.hash_set("a", &owner, 1).unwrap();
        }
        compare(&mut keyspace, "more owners than one lock has", "hash");
        server.command(&["HSET", "a", MODE, "read"]);
        keyspace.hash_set("a", MODE, "read").unwrap();
        compare(&mut keyspace, "many readers", "read");
    }
}
