//! A client of HTTP/1.1: one request, one connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::support::PATIENCE;

pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The lines of the head after the first, with names in small letters.
    head: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.head.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }
}

/// A `GET` with these lines in its head, or with a `Host` if there are none.
pub(crate) fn get(address: SocketAddr, path: &str, head: &[&str]) -> Answer {
    let host = format!("Host: {address}");
    let head = if head.is_empty() { vec![host.as_str()] } else { head.to_vec() };
    send(address, "GET", path, &head, "").unwrap()
}

/// Any request.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    head: &[&str],
    body: &str,
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (head, length) = (head.join("\r\n"), body.len());
    let text =
        format!("{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes())?;
    read(stream)
}

/// Reads the answer on a connection.
pub(crate) fn read(stream: TcpStream) -> std::io::Result<Answer> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no answer: {first:?}")))?;
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        head.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let mut answer = Answer { status, head, body: String::new() };
    match answer.header("content-length").parse() {
        Ok(length) => reader.take(length).read_to_string(&mut answer.body)?,
        Err(_) => reader.read_to_string(&mut answer.body)?,
    };
    Ok(answer)
}
