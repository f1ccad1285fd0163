// Command coredns is CoreDNS with the plugins that kubeadm's Corefile names, and no others.
//
// It is a part of this module so that it shares the compiled Kubernetes client with hyperkube:
// the whole of CoreDNS takes as long to compile as a quarter of Kubernetes.
package main

import (
	_ "github.com/coredns/coredns/core/dnsserver" // the server type "dns"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log" // not named there; for who looks for a fault
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() { coremain.Run() }
