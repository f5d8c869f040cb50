/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cubic stream of ns-3 (Debian 12: libns3-dev 3.37) over a link like that of bottleneck.c, to
 * judge the latter by: judge.py builds and runs this. Not part of the build.
 *
 * usage: ns3_cubic RATE_BIT_S DELAY_US QUEUE_B LOSS_PPM FROM_S TO_S SEED
 * With losses it is a stream of reno: ns-3's cubic has no part for small windows, where the kernel's
 * follows reno (RFC 9438 4.3). Prints payload bits a second that arrived between the two times.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <ns3/applications-module.h>
#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <ns3/traffic-control-module.h>

using namespace ns3;

static uint64_t came_b;

static void OnCame(Ptr<const Packet> packet, const Address &)
{
	came_b += packet->GetSize();
}

static uint64_t from_b;

static void AtFrom()
{
	from_b = came_b;
}

/* As Linux sets TCP up: segments of 1,448 bytes (1,500 less 20, 20, and 12 of options), a window of
 * 10 at the start, buffers that do not limit, selective ACKs, HyStart, an ACK for two segments. */
static void DefaultsSet(bool reno)
{
	Config::SetDefault("ns3::TcpL4Protocol::SocketType",
			   TypeIdValue(reno ? TcpLinuxReno::GetTypeId() : TcpCubic::GetTypeId()));
	Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
			   TypeIdValue(TcpPrrRecovery::GetTypeId()));
	Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
	Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
	Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 28));
	Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 28));
	Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
	Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
	Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
}

int main(int argc, char **argv)
{
	if (argc != 8) {
		fprintf(stderr,
			"usage: ns3_cubic RATE_BIT_S DELAY_US QUEUE_B LOSS_PPM FROM_S TO_S SEED\n");
		return 1;
	}
	double from_s = atof(argv[5]), to_s = atof(argv[6]);

	RngSeedManager::SetSeed(atoi(argv[7]));
	DefaultsSet(atof(argv[4]) > 0);

	NodeContainer ends;
	ends.Create(2);
	PointToPointHelper link;
	link.SetDeviceAttribute("DataRate", StringValue(std::string(argv[1]) + "bps"));
	link.SetDeviceAttribute("Mtu", UintegerValue(1500));
	link.SetChannelAttribute("Delay", TimeValue(MicroSeconds(atoll(argv[2]))));
	link.SetQueue("ns3::DropTailQueue", "MaxSize",
		      QueueSizeValue(QueueSize(std::string(argv[3]) + "B")));
	NetDeviceContainer devices = link.Install(ends);
	Ptr<RateErrorModel> loss = CreateObject<RateErrorModel>();
	loss->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
	loss->SetRate(atof(argv[4]) / 1e6);
	devices.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(loss));

	/* No queue of the traffic control in front of the device's. */
	InternetStackHelper().Install(ends);
	Ipv4AddressHelper addresses;
	addresses.SetBase("10.1.1.0", "255.255.255.0");
	Ipv4InterfaceContainer at = addresses.Assign(devices);
	TrafficControlHelper().Uninstall(devices);

	PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 9));
	ApplicationContainer sinks = sink.Install(ends.Get(1));
	sinks.Get(0)->TraceConnectWithoutContext("Rx", MakeCallback(&OnCame));
	BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(at.GetAddress(1), 9));
	bulk.SetAttribute("MaxBytes", UintegerValue(0));
	bulk.SetAttribute("SendSize", UintegerValue(1448 * 8));
	bulk.Install(ends.Get(0)).Start(MilliSeconds(1));

	Simulator::Schedule(Seconds(from_s), &AtFrom);
	Simulator::Stop(Seconds(to_s));
	Simulator::Run();
	printf("%.0f\n", static_cast<double>(came_b - from_b) * 8 / (to_s - from_s));
	Simulator::Destroy();
	return 0;
}
