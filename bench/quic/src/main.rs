//! Bulk data over QUIC for comparison: `quic-peer serve ADDRESS CERTIFICATE` writes its certificate and waits for one
//! sender; `quic-peer send ADDRESS CERTIFICATE SECONDS OMIT` sends one stream for OMIT + SECONDS seconds, and
//! prints as JSON what the receiver got after the first OMIT.
//!
//! quinn's congestion control (CUBIC) and settings, except for windows: its defaults are for 100 Mbit/s over 100 ms.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::rustls::RootCertStore;
use quinn::{ClientConfig, Endpoint, RecvStream, ServerConfig, TransportConfig, VarInt};

/// The name in the certificate.
const NAME: &str = "quic-peer";

/// More than the delay-bandwidth product of any benchmark's path.
const WINDOW_BYTES: u32 = 256 << 20;

/// Bytes that are written at once.
const PIECE_BYTES: usize = 256 << 10;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address, certificate] => serve(address.parse()?, certificate).await,
        ["send", address, certificate, seconds, omit] => {
            send(address.parse()?, certificate, seconds.parse()?, omit.parse()?).await
        }
        _ => Err(
            "usage: quic-peer serve ADDRESS CERTIFICATE | send ADDRESS CERTIFICATE SECONDS OMIT"
                .into(),
        ),
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES));
    Arc::new(transport)
}

async fn serve(address: SocketAddr, certificate: &str) -> Outcome<()> {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.key_pair.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, address)?;
    // The certificate announces that the server listens.
    fs::write(certificate, made.cert.der())?;
    let connection = endpoint.accept().await.ok_or("the endpoint was closed")?.await?;
    let (mut answer, mut asked) = connection.accept_bi().await?;
    let (omit, span) = (asked_ms(&mut asked).await?, asked_ms(&mut asked).await?);
    let began = Instant::now();
    let (mut bytes, mut from, mut last) = (0_u64, None, began);
    while let Some(left) = (omit + span).checked_sub(began.elapsed()) {
        let Ok(piece) = tokio::time::timeout(left, asked.read_chunk(usize::MAX, true)).await else {
            break;
        };
        let Some(piece) = piece? else { break };
        last = Instant::now();
        if last - began >= omit {
            from.get_or_insert(last);
            bytes += piece.bytes.len() as u64;
        }
    }
    // A path on which nothing moves any more has carried nothing for the rest of the time.
    let seconds = from.map_or(span, |from| last.max(began + omit + span) - from).as_secs_f64();
    answer.write_all(format!("{{\"bytes\": {bytes}, \"seconds\": {seconds}}}").as_bytes()).await?;
    answer.finish()?;
    connection.closed().await;
    Ok(())
}

async fn asked_ms(asked: &mut RecvStream) -> Outcome<Duration> {
    let mut number = [0; 8];
    asked.read_exact(&mut number).await?;
    Ok(Duration::from_millis(u64::from_be_bytes(number)))
}

async fn send(address: SocketAddr, certificate: &str, seconds: f64, omit: f64) -> Outcome<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(fs::read(certificate)?))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let mut endpoint = Endpoint::client(SocketAddr::new(
        if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() },
        0,
    ))?;
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(address, NAME)?.await?;
    let (mut stream, mut answer) = connection.open_bi().await?;
    for number in [omit, seconds] {
        stream.write_all(&((number * 1e3) as u64).to_be_bytes()).await?;
    }
    let piece = vec![0x5a; PIECE_BYTES];
    let sending = async {
        loop {
            if let Err(error) = stream.write_all(&piece).await {
                return error;
            }
        }
    };
    let said = tokio::select! {
        said = answer.read_to_end(4096) => said?,
        error = sending => return Err(error.into()),
    };
    println!("{}", String::from_utf8_lossy(&said));
    connection.close(VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
    Ok(())
}
