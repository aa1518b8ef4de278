//! Redirections: a node names another node for a hash slot. A redirected command has not run.

use crate::store::redis::address::url::Address;
use crate::store::redis::resp::hash_slot::HASH_SLOTS;

/// The destination of a redirected command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirection {
    /// `MOVED`: node `to` serves the hash slot from now on.
    Moved { slot: u16, to: Address },
    /// `ASK`: the hash slot is migrating, and node `to` may already have the key. For this command
    /// only, after `ASKING`.
    Ask { to: Address },
}

impl Redirection {
    /// Parses an error reply of the node `asked`. Returns `None` if the reply is no redirection.
    pub(crate) fn parse(code: &str, message: &str, asked: &Address) -> Option<Self> {
        if code != "MOVED" && code != "ASK" {
            return None;
        }
        let (slot, place) = message.trim().split_once(' ')?;
        let slot = slot.parse().ok().filter(|slot| *slot < HASH_SLOTS)?;
        // An IPv6 address has no brackets here.
        let (host, port) = place.trim().rsplit_once(':')?;
        let to = asked.beside(host, port.parse().ok()?)?;
        Some(if code == "MOVED" { Self::Moved { slot, to } } else { Self::Ask { to } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: &str, message: &str) -> Option<Redirection> {
        let asked = Address { host: "asked".to_owned(), port: 1 };
        Redirection::parse(code, message, &asked)
    }

    fn to(host: &str) -> Address {
        Address { host: host.to_owned(), port: 6381 }
    }

    #[test]
    fn moved_and_ask_name_a_node() {
        let moved = Redirection::Moved { slot: 3999, to: to("127.0.0.1") };
        assert_eq!(read("MOVED", "3999 127.0.0.1:6381"), Some(moved));
        assert_eq!(read("ASK", "3999 ::1:6381"), Some(Redirection::Ask { to: to("::1") }));
        let named = Redirection::Ask { to: to("b.example.org") };
        assert_eq!(read("ASK", "3999 b.example.org:6381"), Some(named));
    }

    #[test]
    fn an_empty_host_is_the_host_that_was_asked() {
        let ask = Redirection::Ask { to: to("asked") };
        for message in ["3999 :6381", "3999 ?:6381"] {
            assert_eq!(read("ASK", message), Some(ask.clone()), "{message}");
        }
    }

    #[test]
    fn other_errors_are_not_redirections() {
        for (code, message) in [
            ("ERR", "3999 127.0.0.1:6381"),
            ("MOVED", ""),
            ("MOVED", "3999"),
            ("MOVED", "70000 127.0.0.1:6381"),
            ("MOVED", "16384 127.0.0.1:6381"),
            ("MOVED", "1 127.0.0.1 x:6381"),
            ("MOVED", "1 127.0.0.1:70000"),
            ("ASK", "x 127.0.0.1:6381"),
        ] {
            assert_eq!(read(code, message), None, "{code} {message}");
        }
    }
}
