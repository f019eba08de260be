//! Calls of the gateway to others: to the lock managers, status monitors and port mappers of clients, and to the
//! port mapper of this host. Each has a connection of its own, and ends by a deadline.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weft_onc_rpc::portmap::{self, Mapping};
use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::xdr::{Reader, Writer};
use weft_onc_rpc::{CallHeader, Credential};
use weft_reactor::{Interest, Readiness, timeout};

/// How long a call may take, with its connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a reply; none that is asked for here has more.
const REPLY_BYTES_MAX: usize = 4096;

/// Which procedure is called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Procedure {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) number: u32,
}

fn odd(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Calls a procedure; its results.
///
/// # Errors
/// Whatever keeps the results away; after [`PATIENCE`] at the latest.
pub(crate) async fn call(to: SocketAddr, procedure: Procedure, arguments: &[u8]) -> io::Result<Vec<u8>> {
    call_from(to, procedure, arguments, false).await
}

async fn call_from(
    to: SocketAddr,
    procedure: Procedure,
    arguments: &[u8],
    reserved: bool,
) -> io::Result<Vec<u8>> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no reply in time");
    timeout(PATIENCE, exchange(weft_host::begin_connect(to, reserved)?, procedure, arguments))
        .await
        .map_err(late)?
}

async fn exchange(stream: TcpStream, procedure: Procedure, arguments: &[u8]) -> io::Result<Vec<u8>> {
    let readiness = Readiness::new(&stream)?;
    let connected = || match weft_host::is_connected(&stream)? {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    };
    readiness.io(Interest::Write, connected).await?;
    let Procedure { program, version, number } = procedure;
    let header = CallHeader { xid: 1, program, version, procedure: number, credential: Credential::None };
    let mut record = vec![0; MARK_BYTES];
    record.extend(header.write().into_bytes());
    record.extend_from_slice(arguments);
    let mark = Mark { is_last: true, bytes: (record.len() - MARK_BYTES) as u32 };
    record[..MARK_BYTES].copy_from_slice(&mark.to_bytes());
    let mut sent = 0;
    while sent < record.len() {
        sent += readiness.io(Interest::Write, || (&stream).write(&record[sent..])).await?;
    }
    let reply = receive(&stream, &readiness).await?;
    let (head, bytes) = ReplyHeader::decode(&reply).map_err(|_| odd("what came is no reply"))?;
    match head.outcome {
        Ok(()) if head.xid == header.xid => Ok(reply[bytes..].to_vec()),
        Ok(()) => Err(odd("the reply is to another call")),
        Err(refusal) => Err(odd(&format!("the call was refused: {refusal:?}"))),
    }
}

/// A record, put together from its fragments.
async fn receive(mut stream: &TcpStream, readiness: &Readiness) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let mut mark = [0; MARK_BYTES];
        receive_exactly(&mut stream, readiness, &mut mark).await?;
        let mark = Mark::of(mark);
        let before = record.len();
        if mark.bytes as usize > REPLY_BYTES_MAX - before {
            return Err(odd("the reply is longer than any that was asked for"));
        }
        record.resize(before + mark.bytes as usize, 0);
        receive_exactly(&mut stream, readiness, &mut record[before..]).await?;
        if mark.is_last {
            return Ok(record);
        }
        if mark.bytes == 0 {
            return Err(odd("the reply has an empty fragment"));
        }
    }
}

async fn receive_exactly(stream: &mut &TcpStream, readiness: &Readiness, into: &mut [u8]) -> io::Result<()> {
    let mut received = 0;
    while received < into.len() {
        match readiness.io(Interest::Read, || stream.read(&mut into[received..])).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => received += bytes,
        }
    }
    Ok(())
}

/// The port of a program that a host's port mapper knows. One at an address of IPv6 is asked for what listens there.
///
/// # Errors
/// As [`call`]; [`io::ErrorKind::NotFound`] where it knows none.
pub(crate) async fn port_of(mapper: SocketAddr, program: u32, version: u32) -> io::Result<u16> {
    let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
    let results =
        call(mapper, mapper_procedure(mapper, portmap::GETPORT), &arguments_of(mapper, &mapping)).await?;
    let port = match mapper.is_ipv6() {
        true => portmap::decode_port_of_address(&results),
        false => portmap::decode_port(&results),
    };
    let port = port.map_err(|_| odd("the port mapper's reply has no port"))?;
    port.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("program {program} has no port there"))
    })
}

/// [`portmap::SET`] or [`portmap::UNSET`], for clients of the family of the mapper's address; whether the mapper
/// has done it.
///
/// # Errors
/// As [`call`].
pub(crate) async fn change_mapping(mapper: SocketAddr, number: u32, mapping: &Mapping) -> io::Result<bool> {
    let arguments = arguments_of(mapper, mapping);
    let results = call_from(mapper, mapper_procedure(mapper, number), &arguments, true).await?;
    Reader::new(&results).bool().map_err(|_| odd("the port mapper's reply is no yes or no"))
}

fn mapper_procedure(mapper: SocketAddr, number: u32) -> Procedure {
    let version = if mapper.is_ipv6() { portmap::VERSION_4 } else { portmap::VERSION };
    Procedure { program: portmap::PROGRAM, version, number }
}

fn arguments_of(mapper: SocketAddr, mapping: &Mapping) -> Vec<u8> {
    let writer = Writer::new();
    let arguments = match mapper.is_ipv6() {
        true => mapping.write_at(std::net::Ipv6Addr::UNSPECIFIED.into(), writer),
        false => mapping.write(writer),
    };
    arguments.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;
    use weft_reactor::{Reactor, ReactorOptions};

    const PING: Procedure = Procedure { program: 7, version: 1, number: 0 };

    fn run<T>(test: impl Future<Output = T>) -> T {
        Reactor::new(ReactorOptions::default()).unwrap().run(test)
    }

    /// Answers one call with these records.
    fn answering(records: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 44]).unwrap();
            stream.write_all(&records).unwrap();
        });
        address
    }

    fn fragment(is_last: bool, bytes: &[u8]) -> Vec<u8> {
        [&Mark { is_last, bytes: bytes.len() as u32 }.to_bytes()[..], bytes].concat()
    }

    #[test]
    fn results_come_in_any_fragments() {
        let reply = weft_onc_rpc::reply::success(1).u32(7).into_bytes();
        let records = [fragment(false, &reply[..5]), fragment(true, &reply[5..])].concat();
        let results = run(call(answering(records), PING, b"")).unwrap();
        assert_eq!(results, 7u32.to_be_bytes());
    }

    #[test]
    fn a_mapper_at_an_address_of_ipv6_is_asked_in_version_4() {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut mark = [0; MARK_BYTES];
            stream.read_exact(&mut mark).unwrap();
            let mut call = vec![0; Mark::of(mark).bytes as usize];
            stream.read_exact(&mut call).unwrap();
            let reply = weft_onc_rpc::reply::success(1).opaque(b"2001:db8::7.8.1").into_bytes();
            stream.write_all(&fragment(true, &reply)).unwrap();
            call
        });
        assert_eq!(run(port_of(address, 100_021, 4)).unwrap(), 2049);
        let call = asked.join().unwrap();
        let (header, _) = CallHeader::decode(&call).unwrap();
        assert_eq!((header.version, header.procedure), (portmap::VERSION_4, portmap::GETPORT));
        assert!(call.windows(4).any(|part| part == b"tcp6"));
    }

    #[test]
    fn replies_that_cannot_be_are_errors() {
        let huge = Mark { is_last: true, bytes: 1 << 30 }.to_bytes().to_vec();
        let empty = fragment(false, b"").repeat(2);
        let other = fragment(true, &weft_onc_rpc::reply::success(2).into_bytes());
        let refused = fragment(true, &weft_onc_rpc::reply::refused(1, weft_onc_rpc::Refusal::NoProgram));
        for records in [huge, empty, other, refused] {
            let error = run(call(answering(records), PING, b"")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let cut = run(call(answering(vec![0x80, 0]), PING, b"")).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn who_is_not_there_or_says_nothing_holds_nobody_up_for_long() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(run(call(closed, PING, b"")).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        let error = run(call(silent.local_addr().unwrap(), PING, b"")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < PATIENCE * 2);
    }
}
