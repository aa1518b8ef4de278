//! Access control: which requests are answered.
//!
//! The token is a bearer token or the password of HTTP's basic authentication. A cookie lost: a
//! page would have to set the cookie, and a token in a URL gets into histories and logs. With a
//! token, the `Host` may be any name, as behind a reverse proxy: a browser sends the token to no
//! foreign site. Without a token, the `Host` must name this machine, since a site that resolves its
//! own name to 127.0.0.1 would have the same origin as the page.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::Path;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};

/// The shortest allowed token, in bytes. A shorter token can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// The condition for an answer to a request.
pub(crate) enum Access {
    /// The `Host` must name this machine alone, so that no page of another site that resolves its
    /// own name to this machine can read an answer (DNS rebinding).
    LocalName,
    Token(Vec<u8>),
}

/// The reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Name,
    Token,
}

impl Access {
    /// Reads the file `token`, if given. An error if the file has no valid token, or if others can
    /// reach the address `listen` and there is no token.
    pub(crate) fn new(listen: SocketAddr, token: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        if let Some(path) = token {
            return Ok(Self::Token(read_token(path)?));
        }
        if !listen.ip().to_canonical().is_loopback() {
            return Err(format!(
                "--listen {listen}: others can reach this address and would read all names of locks: \
                 give --token-file FILE, or listen on 127.0.0.1 or [::1]"
            )
            .into());
        }
        Ok(Self::LocalName)
    }

    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match self {
            Self::LocalName => {
                let mut hosts = headers.get_all(HOST).iter();
                let host = hosts.next().and_then(|host| host.to_str().ok());
                let is_local = host.is_some_and(is_local) && hosts.next().is_none();
                if is_local { Ok(()) } else { Err(Refusal::Name) }
            }
            Self::Token(token) => {
                let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
                let given = given.and_then(given_token).unwrap_or_default();
                if is_same(&given, token) { Ok(()) } else { Err(Refusal::Token) }
            }
        }
    }
}

fn read_token(path: &Path) -> Result<Vec<u8>, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("the token file {} cannot be read: {error}", path.display()))?;
    let token = text.trim_end_matches(['\r', '\n']);
    if token.len() < SHORTEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "the token file {} needs one line of at least {SHORTEST_TOKEN} visible signs of ASCII",
            path.display()
        ));
    }
    Ok(token.as_bytes().to_vec())
}

/// Whether the value of `Host` is a name of this machine alone, with or without a port.
fn is_local(host: &str) -> bool {
    if host.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback()) {
        return true;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost")
        || name == "[::1]"
        || name.parse().is_ok_and(|address: std::net::Ipv4Addr| address.is_loopback())
}

/// The token in the value of `Authorization`: a bearer token, or the password of any user.
fn given_token(value: &str) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64(rest)?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

/// Decodes a Base64 text. `None` if the text has a letter outside of the alphabet.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count).to_le_bytes()[0]);
        }
    }
    Some(decoded)
}

/// Compares two tokens, in a time dependent on the length of `given` alone.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let mut differences = u8::from(given.len() != token.len());
    for (place, byte) in given.iter().enumerate() {
        differences |= byte ^ token[place % token.len()];
    }
    black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn with(name: &hyper::header::HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "LocalHost:9419", "127.0.0.1:1", "127.1.2.3", "[::1]", "[::1]:80"]
        {
            assert_eq!(Access::LocalName.check(&with(&HOST, &[host])), Ok(()), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com:9419",
            "10.0.0.1:9419",
            "0.0.0.0",
            "localhost:x",
            "",
        ] {
            assert_eq!(
                Access::LocalName.check(&with(&HOST, &[host])),
                Err(Refusal::Name),
                "{host}"
            );
        }
        assert_eq!(Access::LocalName.check(&HeaderMap::new()), Err(Refusal::Name));
        let two = with(&HOST, &["localhost", "example.com"]);
        assert_eq!(Access::LocalName.check(&two), Err(Refusal::Name));
    }

    #[test]
    fn the_token_is_a_bearer_token_or_a_password() {
        let access = Access::Token(TOKEN.into());
        for value in [
            "Bearer 0123456789abcdef",
            "bearer  0123456789abcdef",
            "Basic cHJvbTowMTIzNDU2Nzg5YWJjZGVm",
            "Basic OjAxMjM0NTY3ODlhYmNkZWY=",
        ] {
            assert_eq!(access.check(&with(&AUTHORIZATION, &[value])), Ok(()), "{value}");
        }
        for value in [
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcdef0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer ",
            "Bearer",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
            "Basic cHJvbTp4",
            "Basic ====",
            "Basic é",
            "Digest 0123456789abcdef",
            "",
        ] {
            let headers = with(&AUTHORIZATION, &[value]);
            assert_eq!(access.check(&headers), Err(Refusal::Token), "{value}");
        }
        assert_eq!(access.check(&HeaderMap::new()), Err(Refusal::Token));
    }
}
